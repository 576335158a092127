"""The door: where each of its names comes from. `__init__.py` reads this file, and so do type checkers."""

from roll.core.algorithms.policy_loss import LossInputs as LossInputs, policy_loss as policy_loss
from roll.core.algorithms.step_advantages import TurnArgs as TurnArgs, Turns as Turns
from roll.cli.main import run_command as run_command
from roll.core.configs.agentic import (
    AgenticConfig as AgenticConfig,
    AgenticValidationConfig as AgenticValidationConfig,
    AgenticValidationSet as AgenticValidationSet,
    EnvConfig as EnvConfig,
    EnvManagerConfig as EnvManagerConfig,
    PassRateMixtureConfig as PassRateMixtureConfig,
    RewardNormalizationConfig as RewardNormalizationConfig,
)
from roll.core.configs.watching import (
    AlarmConfig as AlarmConfig,
    EarlyStoppingConfig as EarlyStoppingConfig,
    KeepBestConfig as KeepBestConfig,
    OnEventConfig as OnEventConfig,
)
from roll.core.configs.arguments import (
    CurriculumConfig as CurriculumConfig,
    DataArguments as DataArguments,
    GeneratingArguments as GeneratingArguments,
    ImageArguments as ImageArguments,
    ModelArguments as ModelArguments,
    PassRateConfig as PassRateConfig,
    StrategyArguments as StrategyArguments,
    TrainDataArguments as TrainDataArguments,
    TrainingArguments as TrainingArguments,
)
from roll.core.configs.distillation import DistillationConfig as DistillationConfig
from roll.core.configs.replay import ReplayConfig as ReplayConfig
from roll.core.configs.losses import (
    CorrectionFilterConfig as CorrectionFilterConfig,
    ISWeightConfig as ISWeightConfig,
    TrainInferCorrectionConfig as TrainInferCorrectionConfig,
)
from roll.core.configs.staleness import StalenessTuningConfig as StalenessTuningConfig
from roll.core.configs.flow import FlowConfig as FlowConfig, CustomStageConfig as CustomStageConfig
from roll.core.configs.plain import to_mapping as to_mapping
from roll.core.configs.program import ProgramConfig as ProgramConfig
from roll.core.configs.problems import ConfigError as ConfigError, Problem as Problem
from roll.core.configs.rlvr import RLVRConfig as RLVRConfig, RolloutConfig as RolloutConfig
from roll.core.configs.tools import (
    ToolConfig as ToolConfig,
    ToolWrapperArgs as ToolWrapperArgs,
    ToolWrapperConfig as ToolWrapperConfig,
)
from roll.core.configs.worker import (
    ActorInferConfig as ActorInferConfig,
    ActorLogProbConfig as ActorLogProbConfig,
    ActorTrainConfig as ActorTrainConfig,
    CriticConfig as CriticConfig,
    JudgeModelConfig as JudgeModelConfig,
    QueryFilterArgs as QueryFilterArgs,
    QueryFilterConfig as QueryFilterConfig,
    ReferenceConfig as ReferenceConfig,
    RewardConfig as RewardConfig,
    RewardModelConfig as RewardModelConfig,
    RouterReplayConfig as RouterReplayConfig,
    ShapingConfig as ShapingConfig,
    ValidationConfig as ValidationConfig,
    TeacherConfig as TeacherConfig,
)
from roll.core.configs.rows import PairLossConfig as PairLossConfig
from roll.core.configs.rows import WarmStartConfig as WarmStartConfig
from roll.core.data.sample import Prompt as Prompt
from roll.core.data.sample import Sample as Sample
from roll.core.data.sample import SampleGroup as SampleGroup
from roll.core.data.sample import Trajectory as Trajectory
from roll.core.data.sample import Turn as Turn
from roll.core.data.sample import VersionSpan as VersionSpan
from roll.api import check as check
from roll.api import evaluate as evaluate
from roll.api import load_config as load_config
from roll.api import train as train
from roll.envs.registry import make_env as make_env
from roll.envs.text_game import TextGame as TextGame
from roll.envs.tools.calculator import Calculator as Calculator
from roll.envs.tools.tool import Tool as Tool
from roll.core.errors import Refused as Refused, ToolFailed as ToolFailed
from roll.chat.own_rollouts import Chat as Chat
from roll.prepare.agentic_run import AgenticPipeline as AgenticPipeline
from roll.core.record.callbacks import Callback as Callback
from roll.core.record.run_progress import RunProgress as RunProgress
from roll.prepare.own_stages import BuiltIn as BuiltIn
from roll.core.flow.custom_stage import Drop as Drop
from roll.core.flow.custom_stage import CustomStage as CustomStage
from roll.core.rewards.worker import RewardResult as RewardResult
from roll.prepare.rlvr_run import RLVRPipeline as RLVRPipeline
from roll.core.flow.stage import Stage as Stage
from roll.prepare.training_flow import AsyncTrainingFlow as AsyncTrainingFlow
from roll.prepare.training_flow import create_role_state_machine as create_role_state_machine
from roll.envs.environment import AsyncTextEnv as AsyncTextEnv
from roll.envs.environment import TextEnv as TextEnv
from roll.core.rewards.worker import RewardWorker as RewardWorker

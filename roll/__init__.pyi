"""The door: where each of its names comes from. `__init__.py` reads this file, and so do type checkers."""

from roll.algorithms.policy_loss import LossInputs as LossInputs, policy_loss as policy_loss
from roll.algorithms.step_advantages import TurnArgs as TurnArgs, Turns as Turns
from roll.cli.main import run_command as run_command
from roll.configs.agentic import (
    AgenticConfig as AgenticConfig,
    AgenticValidationConfig as AgenticValidationConfig,
    AgenticValidationSet as AgenticValidationSet,
    EnvConfig as EnvConfig,
    EnvManagerConfig as EnvManagerConfig,
    PassRateMixtureConfig as PassRateMixtureConfig,
    RewardNormalizationConfig as RewardNormalizationConfig,
)
from roll.configs.base import AlarmConfig as AlarmConfig
from roll.configs.arguments import (
    CurriculumConfig as CurriculumConfig,
    DataArguments as DataArguments,
    GeneratingArguments as GeneratingArguments,
    ModelArguments as ModelArguments,
    PassRateConfig as PassRateConfig,
    StrategyArguments as StrategyArguments,
    TrainDataArguments as TrainDataArguments,
    TrainingArguments as TrainingArguments,
)
from roll.configs.losses import (
    CorrectionFilterConfig as CorrectionFilterConfig,
    ISWeightConfig as ISWeightConfig,
    TrainInferCorrectionConfig as TrainInferCorrectionConfig,
)
from roll.configs.staleness import StalenessTuningConfig as StalenessTuningConfig
from roll.configs.flow import FlowConfig as FlowConfig, CustomStageConfig as CustomStageConfig
from roll.configs.plain import to_mapping as to_mapping
from roll.configs.program import ProgramConfig as ProgramConfig
from roll.configs.problems import ConfigError as ConfigError, Problem as Problem
from roll.configs.rlvr import RLVRConfig as RLVRConfig, RolloutConfig as RolloutConfig
from roll.configs.tools import (
    ToolConfig as ToolConfig,
    ToolWrapperArgs as ToolWrapperArgs,
    ToolWrapperConfig as ToolWrapperConfig,
)
from roll.configs.worker import (
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
)
from roll.data.sample import Prompt as Prompt
from roll.data.sample import Sample as Sample
from roll.data.sample import SampleGroup as SampleGroup
from roll.data.sample import Trajectory as Trajectory
from roll.data.sample import Turn as Turn
from roll.data.sample import VersionSpan as VersionSpan
from roll.door import check as check
from roll.door import evaluate as evaluate
from roll.door import load_config as load_config
from roll.door import train as train
from roll.envs.registry import make_env as make_env
from roll.envs.text_game import TextGame as TextGame
from roll.envs.tools.calculator import Calculator as Calculator
from roll.envs.tools.tool import Tool as Tool
from roll.errors import Refused as Refused, ToolFailed as ToolFailed
from roll.explorer.own_rollouts import Chat as Chat
from roll.pipeline.agentic_run import AgenticPipeline as AgenticPipeline
from roll.record.callbacks import Callback as Callback
from roll.record.run_progress import RunProgress as RunProgress
from roll.flow.custom_stage import BuiltIn as BuiltIn
from roll.flow.custom_stage import Drop as Drop
from roll.flow.custom_stage import CustomStage as CustomStage
from roll.rewards.worker import RewardResult as RewardResult
from roll.pipeline.rlvr_run import RLVRPipeline as RLVRPipeline
from roll.flow.stage import Stage as Stage
from roll.pipeline.training_flow import AsyncTrainingFlow as AsyncTrainingFlow
from roll.pipeline.training_flow import create_role_state_machine as create_role_state_machine
from roll.rollout.environment import AsyncTextEnv as AsyncTextEnv
from roll.rollout.environment import TextEnv as TextEnv
from roll.rewards.worker import RewardWorker as RewardWorker

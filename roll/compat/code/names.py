"""ROLL's import paths in its users' files and code, where this package has no module of that path.

A finder behind Python's own answers for them: a module made of the names below, or, on the way to one, an empty package. ROLL's
other names there are refused when they are imported. Until such a path is, only the standard library is.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_HERE = __name__.rpartition(".")[0]
_WORKERS, _PROTOCOL = f"{_HERE}.workers", f"{_HERE}.reward_child"
_BY_TURN = "roll.envs.turn_managers"
_REWARDS = {
    "box_iou_reward_worker": ("roll.graders.boxes", "BoxIoURewardWorker"),
    "code_sandbox_reward_worker": ("roll.graders.code_rule", "CodeSandboxRewardWorker"),
    "count_reward_worker": ("roll.graders.boxes", "CountRewardWorker"),
    "crossthinkqa_rule_reward_worker": ("roll.graders.rules", "CrossThinkQARuleRewardWorker"),
    "detection_reward_worker": ("roll.graders.detection", "DetectionRewardWorker"),
    "environment_reward_worker": ("roll.graders.rules", "EnvironmentRewardWorker"),
    "exact_match_reward_worker": ("roll.graders.rules", "ExactMatchRewardWorker"),
    "general_val_rule_reward_worker": ("roll.graders.rules", "GeneralValRuleRewardWorker"),
    "http_reward_worker": ("roll.graders.service", "HTTPRewardWorker"),
    "ifeval_rule_reward_worker": ("roll.graders.instructions", "GeneralRuleRewardWorker"),
    "llm_judge_reward_worker": ("roll.graders.by_model", "LLMJudgeRewardWorker"),
    "math_rule_reward_worker": ("roll.graders.rules", "MathRuleRewardWorker"),
    "multiple_choice_boxed_rule_reward_worker": ("roll.graders.rules", "MultipleChoiceBoxedRuleRewardWorker"),
    "reward_model_worker": ("roll.graders.by_model", "RewardModelWorker"),
}
"""The reward workers that `worker_cls` names: ROLL's -> ours of that form."""
NAMES: dict[str, tuple[str, str]] = {
    "roll.configs.worker_config": (_WORKERS, "WorkerConfig"),
    "roll.distributed.executor.worker": (_WORKERS, "RankInfo Worker"),
    "roll.distributed.scheduler.decorator": (_PROTOCOL, "Dispatch Execute register"),
    "roll.distributed.scheduler.protocol": (_PROTOCOL, "DataProto"),
    "roll.distributed.strategy.strategy": (_WORKERS, "InferenceStrategy TrainStrategy"),
    "roll.models.model_providers": (_WORKERS, "default_reward_model_provider default_tokenizer_provider"),
    "roll.pipeline.agentic.agentic_pipeline": ("roll.prepare.agentic_run", "AgenticPipeline"),
    "roll.pipeline.agentic.env": ("", "gem"),
    "roll.pipeline.agentic.env_manager.agent_native_env_manager": (_BY_TURN, "AgentNativeStepEnvManager"),
    "roll.pipeline.agentic.env_manager.step_concat_env_manager": (_BY_TURN, "StepConcatEnvManager"),
    "roll.pipeline.agentic.env_manager.step_env_manager": (_BY_TURN, "StepEnvManager"),
    "roll.pipeline.agentic.env_manager.traj_env_manager": ("roll.envs.episode_managers", "TrajEnvManager"),
    "roll.pipeline.agentic.env.parse_action_utils": (_WORKERS, "default_parser_action_func"),
    "roll.pipeline.rlvr.actor_pg_worker": ("roll.core.workers.workers", "ActorPGWorker=TrainWorker"),
    **{f"roll.pipeline.rlvr.rewards.{name}": place for name, place in _REWARDS.items()},
    "roll.pipeline.rlvr.rlvr_pipeline": ("roll.prepare.rlvr_run", "RLVRPipeline"),
    "roll.pipeline.rlvr.rlvr_config": (_WORKERS, "RewardConfig"),
    "roll.utils.constants": (_WORKERS, "EpisodeStopReason GenerateStopReason RAY_NAMESPACE"),
    "roll.utils.logging": (_WORKERS, "get_logger"),
    "roll.utils.random_utils": (_WORKERS, "all_seed"),
    "roll.utils.str_utils": (_WORKERS, "contains_renderable_field"),
}
"""ROLL's module -> the module that has its names here, and which (`theirs=ours` where they differ); no module: names of packages
that it hands on."""


class _Names:
    """Finder and loader."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if any(known == name or known.startswith(f"{name}.") for known in NAMES):
            return ModuleSpec(name, _Names(), is_package=True)  # type: ignore[arg-type]  # of the protocol, not of the class
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """Python's own kind of module."""

    def exec_module(self, module: ModuleType) -> None:
        source, names = _offered(module.__name__)
        if source:
            here = importlib.import_module(source)
            vars(module).update({theirs: getattr(here, ours) for theirs, ours in names.items()})
        vars(module)["__getattr__"] = _further(module.__name__, [*names])


def _offered(module: str) -> tuple[str, dict[str, str]]:
    source, names = NAMES.get(module, ("", ""))
    pairs = (name.partition("=") for name in names.split())
    return source, {theirs: ours or theirs for theirs, _, ours in pairs}


def place_of(path: str) -> str:
    """Returns the place here of a name of ROLL's; any other dotted path as it is."""
    module, _, name = path.rpartition(".")
    source, names = _offered(module)
    return f"{source}.{names[name]}" if source and name in names else path


def _further(module: str, names: Sequence[str]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of such a module: its answer about names that it lacks, or has not loaded yet."""

    def further(name: str) -> Any:
        if name in names:
            return importlib.import_module(name)
        if name.startswith("__") or any(f"{known}.".startswith(f"{module}.{name}.") for known in NAMES):
            raise AttributeError(name)
        has = f"of it there are {', '.join(names)}" if names else "nothing of it is here"
        raise ImportError(f"ROLL's {module}.{name} is not here; {has}", name=module)

    return further


def install() -> None:
    if _Names not in sys.meta_path:
        sys.meta_path.append(_Names)

"""One name for both kinds of run, and verl's way of calling it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from roll.compat.roll.pipelines import AnyConfig
from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.flow import OnError
from roll.core.configs.problems import ConfigError, Problem
from roll.core.flow.custom_stage import CustomStage
from roll.core.flow.flow import Flow
from roll.core.record.callbacks import Callback
from roll.plan.rows_config import DPOConfig, SFTConfig
from roll.prepare.agentic_run import AgenticPipeline
from roll.prepare.outline import VERLS_NAMES
from roll.prepare.own_stages import BuiltIn, make_stage
from roll.prepare.rlvr_run import RLVRPipeline
from roll.prepare.rows_run import DPOPipeline, SFTPipeline

BROUGHT_BY = {
    "log_prob": "old_logprobs: recompute",
    "reference": "use_kl_loss: true, or add_token_level_kl: true",
    "value": "adv_estimator: gae",
    "critic": "adv_estimator: gae",
    "policy": "adv_estimator: gae",
    "gather": "adv_estimator: gae",
    "train": "an adv_estimator other than gae, with which critic and policy train side by side",
    "reward": "a configuration of rewards (RLVR): an environment gives its own",
    "generate": "a configuration of rewards (RLVR)",
    "episodes": "a configuration of custom_envs (agents)",
}
"""The key that brings a stage which not every run has."""


AnyPipeline: TypeAlias = RLVRPipeline | AgenticPipeline | SFTPipeline | DPOPipeline


def pipeline_for(config: AnyConfig, **options: Any) -> AnyPipeline:
    """`options`: of `Pipeline`."""
    match config:
        case AgenticConfig():
            return AgenticPipeline(config, **options)
        case SFTConfig():
            return SFTPipeline(config, **options)
        case DPOConfig():
            return DPOPipeline(config, **options)
    return RLVRPipeline(config, **options)


class AsyncTrainingFlow:
    """`AsyncTrainingFlow(config).run()`: the pipeline that the configuration is for."""

    def __init__(
        self,
        trainer: AnyConfig,
        *,
        enable_async_rl: bool | None = None,
        local: bool = False,
        stages: Sequence[CustomStage] = (),
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """`trainer`: the configuration. `enable_async_rl`: false is `async_generation_ratio: 0`, true has to fit it, None leaves
        it as it is. Raises `ConfigError`."""
        config = trainer if enable_async_rl is None else _scheduled(trainer, enable_async_rl)
        self.pipeline = pipeline_for(config, local=local, stages=stages, callbacks=callbacks)

    def run(self) -> Any:
        """As `Pipeline.run`: the summary. Where an event loop runs already, a task, as in `summary = await flow.run()`; the loop
        goes on meanwhile."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return self.pipeline.run()
        return loop.create_task(self.pipeline.run_beside(), name="run")

    def outline(self) -> Flow:
        """As `Pipeline.outline`."""
        return self.pipeline.outline()


def create_role_state_machine(
    role_name: str,
    worker: Callable[..., Any] = BuiltIn,
    *,
    after: str | None = None,
    lanes: int | None = None,
    args: Mapping[str, Any] | None = None,
    on_error: OnError = "fail",
    pipeline: AsyncTrainingFlow | AnyPipeline | None = None,
    trainer: AnyConfig | None = None,
    use_async_rl: bool | None = None,
) -> CustomStage:
    """A stage named `role_name`, for the `stages` of a flow, to follow the stage `after`; without `after` it does the work of the
    run's stage of that name. `worker`: a function of the item, plain (it runs in a thread) or a coroutine function, or a subclass
    of `Stage` with a `process`; without it the stage works as the run's own. `args` are handed to it by keyword.

    `pipeline`, or `trainer` with `use_async_rl` as an `AsyncTrainingFlow` has them: whose stages the name has to be one of.
    verl's names count, too. `on_error`: as in `flow.stages`. Raises `ValueError`."""
    if trainer is not None and pipeline is None:
        pipeline = AsyncTrainingFlow(trainer, enable_async_rl=use_async_rl)
    there = [stage.name for stage in pipeline.outline().stages] if pipeline is not None else []
    place = _ours(after or role_name, there)
    name, follows = (place, None) if after is None else (role_name, place)
    return make_stage(name, worker, after=follows, lanes=lanes, args=args, on_error=on_error)


def _ours(name: str, there: Sequence[str]) -> str:
    """The name of a stage of the run. `there`: those that it has; empty if that is not known: the run itself looks later what the
    name means (`outline.in_words_of`). Raises `ValueError`."""
    if not there:
        return name
    ours = [name] if name in there else [*VERLS_NAMES.get(name, (name,))]
    found = next((each for each in ours if each in there), None)
    if found is not None:
        return found
    called = "" if ours == [name] else f" ({' or '.join(ours)} here)"
    brings = " or ".join(dict.fromkeys(BROUGHT_BY[each] for each in ours if each in BROUGHT_BY))
    fix = f"; what brings it: {brings}" if brings else ""
    raise ValueError(f"{name!r}{called} is no stage of the run: one of {', '.join(there)}{fix}")


def _scheduled(config: AnyConfig, ahead: bool) -> AnyConfig:
    if not ahead:
        return replace(config, async_generation_ratio=0.0)
    if config.async_generation_ratio == 0 and not config.train_on_arrival:
        fix = "async_generation_ratio: 1, one step off-policy (generate_ahead_steps: 2), or enable_async_rl=False"
        raise ConfigError([Problem("enable_async_rl", True, "async_generation_ratio is 0, the synchronous schedule", fix)])
    return config

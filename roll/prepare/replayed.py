"""The configuration of a replay: a run's own, with the needs of a process that trains its recorded groups again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.engines import engine_of
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import MISSING_VALUE, ConfigError, Problem
from roll.core.configs.replay import ReplayConfig
from roll.core.configs.rlvr import RLVRConfig
from roll.core.record.checkpoint import CheckpointStore
from roll.topologies.replay.recording import Recording

C = TypeVar("C", bound=PPOConfig)
Config: TypeAlias = RLVRConfig | AgenticConfig
CHOSEN: Mapping[str, Any] = {
    "mode": "replay",
    "groups_database": None,
    "explorer_name": "explorer",
    "weights_address": None,
    "weight_anchor_interval": 1,
    "model_update_transport": "object_store",
    "synchronous_after_failures": 0,
    "sharing": "turns",
    "track_with": "none",
    "tracker_kwargs": {},
    "keep_best": None,
    "early_stopping": None,
    "alarms": [],
    "rollout_log_per_step": 0,
}
"""Keys of the rollout side, of other processes, and those that end or show a run."""


def beginning_of(run_dir: Path, config: PPOConfig, first: int | None) -> tuple[Path | None, int]:
    """Returns the checkpoint from which step `first` is reached soonest, None if there is none, and the number of its step.
    `first`: counted from 1; None: the first step recorded. Raises `ConfigError`."""
    recording = _recording(run_dir)
    recorded = recording.steps
    store = CheckpointStore(run_dir / "checkpoints")
    wanted = recorded[0] if first is None else first
    before = [step for step in store.steps() if recorded[0] - 1 <= step < wanted]
    if config.actor_log_prob is not None:  # it scores with a version before, which a run that goes on does not have
        before = [step for step in before if step in recording.begun]
        begins = before[-1] if before else 0
        if odd := [step for step in recording.begun if step > begins and step % config.weight_push_interval]:
            message = f"the run went on from step {odd[-1]}, whose weights actor_log_prob had and no version has"
            raise ConfigError([Problem("--from", first, message, f"--from {odd[-1] + 1}")])
    if before:
        return store.root / f"step-{before[-1]}", before[-1]
    given = config.resume_from_checkpoint
    if isinstance(given, str) and given != "auto" and Path(given).is_dir():  # it began with another run's checkpoint
        return Path(given), CheckpointStore(Path(given).parent).load(Path(given)).step
    if recorded[0] > 1:
        message = f"steps before {recorded[0]} are not recorded, and there is no checkpoint of a step from {recorded[0] - 1} on"
        fix = f"--from {min([step for step in store.steps() if step >= recorded[0]], default=0) + 1}" if store.steps() else ""
        raise ConfigError([Problem("--from", first, message, fix)])
    return None, 0


def last_of(run_dir: Path) -> int:
    return _recording(run_dir).steps[-1]


def replayed(
    config: C,
    run_dir: Path,
    into: Path,
    begin: Path | None,
    until: int | None = None,
    without: Sequence[str] = (),
    filtered: bool = False,
) -> C:
    """`into`: the replay's own folder. `begin`: the checkpoint that it starts from. `filtered`: filters drop recorded groups."""
    chosen = {**CHOSEN, "output_dir": str(into.parent), "exp_name": into.name}
    chosen |= {"resume_from_checkpoint": False if begin is None else str(begin.absolute())}
    own = ReplayConfig(run=str(run_dir.absolute()), until=until, without=sorted(without), filtered=filtered)
    chosen |= {"replay": own}
    chosen |= {"member_timeout": PPOConfig.member_timeout}
    if config.epochs is not None:
        chosen |= {"total_epochs": None}
    return replace(config, **chosen)


def generating(config: C) -> C:
    """A replay that also generates the tokens again, on one engine. Raises `ConfigError`."""
    strategy, key = config.actor_infer.strategy_args.strategy_name, "actor_infer.strategy_args.strategy_name"
    only = "the weights can be had again: leave --all out"
    if not engine_of(strategy).repeatable:
        message = "does not promise that a response is a function of weights, prompt and seed"
        raise ConfigError([Problem(key, strategy, message, only)])
    own = "rollouts of your own" if isinstance(config, RLVRConfig) and config.rollout is not None else ""
    if isinstance(config, AgenticConfig) and any(env.program is not None for env in config.custom_envs.values()):
        own = "programs"
    if own:
        raise ConfigError([Problem("--all", MISSING_VALUE, f"{own} make requests whose seeds are not recorded", only)])
    if config.warm_start is not None:
        message = "the run begins with rows of a file, which no engine has written"
        raise ConfigError([Problem("--all", MISSING_VALUE, message, only)])
    engine = replace(config.actor_infer, device_mapping=[config.actor_infer.devices[0]])
    return replace(config, actor_infer=engine, replay=replace(config.replay, generate=True))


EXPLAINS = "roll.strategies.train.explaining.ExplainingWorker"
BACK_END = "fsdp2_train"


def explaining(config: C, step: int) -> C:
    """A replay that takes the gradient of a step apart, on one rank. Raises `ConfigError`."""
    trained = config.actor_train
    if step <= config.warm_steps:
        why = f"the first {config.warm_steps} steps train rows of a file by their likelihood, which has no advantages"
        raise ConfigError([Problem("--step", step, why, f"--step {config.warm_steps + 1}, or a later one")])
    message, key = f"a gradient is taken apart by the built-in worker of {BACK_END}", "actor_train.worker_cls"
    if trained.worker_cls is not None:
        raise ConfigError([Problem(key, str(trained.worker_cls), message, f"--change {key}=null")])
    if (strategy := trained.strategy_args.strategy_name) != BACK_END:
        key = "actor_train.strategy_args.strategy_name"
        raise ConfigError([Problem(key, strategy, message, f"--change {key}={BACK_END}, which reads the same checkpoints")])
    ranks, training = len(trained.devices), trained.training_args
    steps = training.gradient_accumulation_steps * ranks
    one = replace(
        trained,
        worker_cls=EXPLAINS,
        device_mapping=[trained.devices[0]],
        training_args=replace(training, gradient_accumulation_steps=steps),
    )
    return replace(config, actor_train=one, replay=replace(config.replay, explain=step))


def _recording(run_dir: Path) -> Recording:
    """Raises `ConfigError`."""
    try:
        return Recording(run_dir)
    except ValueError as error:
        raise ConfigError(
            [Problem("RUN", str(run_dir), str(error), "an RLVR or agentic run with rollout_log_per_step: all")]
        ) from error

"""A simulated run: the production run on virtual time, with scripted workers.

Admission, groups, router, fleet, weight updates, flow, stages, trainer, checkpoints, recovery and journals are those of every
run. What is scripted: the work of engines, trainers and reward workers, and the tasks. What needs real processes, and is refused
or left out: a database of groups and modes apart (`SqlGroups` speaks to other processes), agentic runs (environment workers play
whole groups in their own processes), weights as files or by broadcast (they go by reference, in the time that the table says),
the watch for hangs (it looks at threads), SIGTERM's last resort (it ends the process).
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from roll.configs.derived import derive
from roll.configs.ppo import PPOConfig
from roll.configs.problems import Collector, ConfigError, Problem
from roll.configs.rlvr import RLVRConfig
from roll.configs.validation import check_config
from roll.data.sample import Prompt
from roll.distributed.backend import WorkerSpec
from roll.distributed.cluster import Cluster
from roll.distributed.devices import Inventory
from roll.explorer.agentic import EpisodeSource
from roll.flow.flow import Flow
from roll.pipeline.rlvr_run import RLVRPrepared, RLVRRun, group_filters
from roll.record.callbacks import Callback
from roll.record.checkpoint import Checkpoint, CheckpointStore, resumable
from roll.record.run_identity import standing
from roll.record.validation import ValidationSet
from roll.simulate.backend import SimulatedBackend
from roll.simulate.costs import Costs
from roll.simulate.virtual_loop import run_virtually
from roll.simulate.workers import ScriptedInferWorker, ScriptedRewardWorker, ScriptedTrainWorker
from roll.strategies.infer.interface import sampling_params

GRAINS = 32
"""Of a response of mean length: so many tokens are kept of it, each standing for several."""
NEVER = 10**9
CHOSEN: Mapping[str, Any] = {
    "track_with": "none",
    "model_update_transport": "object_store",
    "rollout_log_per_step": 0,
    "logging_steps": NEVER,
    "deterministic": False,
}
"""Keys that say where and how a run is recorded, or how weights travel; a simulation has its own."""


class ScriptedTasks(EpisodeSource):
    """Tasks by domain, numbered; no two prompts begin alike."""

    def __init__(self, config: RLVRConfig, prompt_grains: int) -> None:
        shares = derive(config).domain_shares or dict.fromkeys(config.rewards, 1.0)
        super().__init__(shares, dict.fromkeys(shares, ""), config.seed)
        self._grains = prompt_grains

    def next(self) -> Prompt:
        prompt = super().next()
        return replace(prompt, input_ids=[prompt.row["env_seed"] % 2**31] * self._grains)


class _NoText:
    """In the place of the tokenizer."""

    eos_token_id = None

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return ""


_NO_TEXT: Any = _NoText()


@dataclass(frozen=True, slots=True)
class Simulation:
    config: RLVRConfig
    costs: Costs
    wrong: list[str] = field(default_factory=list)
    """What engines found that were given other weights than those of the version they were named."""

    @property
    def grain(self) -> int:
        """Tokens that one token of a simulated sample stands for."""
        longest = derive(self.config).max_new_tokens
        return max(1, round(min(self.costs.response_tokens.mean, longest) / GRAINS))

    @property
    def inventory(self) -> Inventory:
        config = self.config
        devices = {device for worker in config.roles().values() for device in worker.devices}
        per_node = config.num_gpus_per_node or -(-(max(devices, default=0) + 1) // config.num_nodes)
        return Inventory("cuda", config.num_nodes, per_node, per_node)

    def prepared(self, checkpoint: Checkpoint | None = None, callbacks: Sequence[Callback] = ()) -> RLVRPrepared:
        """What `rlvr_run.prepare` makes, without files. Raises `ConfigError`."""
        config, derived, collect = self.config, derive(self.config), Collector()
        grains = round(self.costs.prompt_tokens / self.grain)
        source = ScriptedTasks(config, grains)
        filters = group_filters(config, collect)
        collect.raise_if_any()
        run_dir = Path(derived.run_dir)
        run_dir.mkdir(parents=True, exist_ok=True)
        prepared = RLVRPrepared(
            config=config,
            derived=derived,
            tokenizer=_NO_TEXT,
            source=source,
            beginning=source.cursor(),
            filters=filters,
            checkpoint=None,
            run_dir=run_dir,
            validation=self._sets(grains),
            callbacks=tuple(callbacks),
            identity=standing(config, checkpoint),
            skipped={},
            success_at=dict.fromkeys(config.rewards, 1.0),
        )
        return prepared.resumed(checkpoint) if checkpoint is not None else prepared

    def checkpoint(self) -> Checkpoint | None:
        """The newest that a simulated run has left in its folder."""
        return resumable(CheckpointStore(Path(self.config.run_dir) / "checkpoints"), self.config)

    def worker(self, spec: WorkerSpec) -> object:
        """The scripted worker of a specification."""
        role, config, costs = spec.name.rpartition("-")[0], self.config, self.costs
        if role == "actor_infer":
            return ScriptedInferWorker(costs, self.grain, spec.kwargs["options"], self.wrong)
        if role.startswith("rewards."):
            side_by_side = config.rewards[role.removeprefix("rewards.")].max_concurrency
            return ScriptedRewardWorker(costs, config.seed, side_by_side)
        return ScriptedTrainWorker(spec.name, costs, self.grain)

    def _sets(self, grains: int) -> list[ValidationSet]:
        config, sets = self.config, []
        count = config.val_batch_size or round(self.costs.validation_prompts)
        domain = next(iter(config.rewards))
        for name, args in config.validation_sampling.items():
            prompts = tuple(Prompt(f"{name}/{i}", [0] * grains, "", domain, domain, "") for i in range(count))
            longest = args.max_new_tokens or derive(config).response_length
            sets.append(ValidationSet(name, prompts, args.num_return_sequences or 1, sampling_params(args, longest, None)))
        return sets


class SimulatedRun(RLVRRun):
    """The production run without those who only look on: a display, files that are kept up to date, memory of processes."""

    def onlookers(self, flow: Flow, clusters: Mapping[str, Cluster]) -> list[Coroutine[object, object, None]]:
        self.flow = flow
        return []


def simulated(config: PPOConfig, folder: Path, *, checkpoints: bool = False) -> RLVRConfig:
    """The configuration as a simulation takes it, in a folder of its own. Raises `ConfigError` for what cannot be simulated, and
    for what is wrong with the configuration."""
    if not isinstance(config, RLVRConfig):
        message = "environment workers play episodes in processes of their own, which are not scripted"
        raise ConfigError([Problem("config_name", config.exp_name, message, "an RLVR configuration")])
    problems = []
    if config.mode != "both":
        problems.append(Problem("mode", config.mode, "halves apart meet in a database of real processes", "both"))
    if config.total_epochs is not None:
        problems.append(Problem("total_epochs", config.total_epochs, "no prompts are read, so it says no steps", "max_steps"))
    if config.flow.stages:
        problems.append(Problem("flow.stages", len(config.flow.stages), "own stages take real time", "none"))
    if config.rollout is not None:
        problems.append(Problem("rollout", config.rollout.function, "rollouts of your own take real time", "none"))
    if problems:
        raise ConfigError(problems)
    chosen: dict[str, Any] = {"output_dir": str(folder), "groups_database": None, "resume_from_checkpoint": "auto", **CHOSEN}
    if not checkpoints:
        chosen["save_steps"] = NEVER
    config = replace(config, **chosen)
    if problems := check_config(config, Simulation(config, Costs()).inventory.count):
        raise ConfigError(problems)
    return config


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """What a run prints and logs for people on the way is not what a simulation is asked for."""
    logger = logging.getLogger("roll")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


Beside = Callable[[SimulatedRun, SimulatedBackend], Coroutine[Any, Any, None]]
"""Runs beside a simulated run from its beginning on, and is cancelled when that has ended."""


def simulate(
    simulation: Simulation, *, beside: Beside | None = None, callbacks: Sequence[Callback] = (), resume: bool = False
) -> dict[str, Any]:
    """The summary of the run, at the end of which its folder holds what a real one leaves. Raises `Stuck` if it would never end,
    and `ConfigError`."""

    async def main() -> dict[str, Any]:
        prepared = simulation.prepared(simulation.checkpoint() if resume else None, callbacks)
        backend = SimulatedBackend(simulation.inventory, simulation.costs, simulation.worker)
        run = SimulatedRun(simulation.config, prepared, simulation.inventory, backend)
        other = asyncio.ensure_future(beside(run, backend)) if beside is not None else None
        try:
            return await run.run()
        finally:
            if other is not None:
                other.cancel()

    with unheard():
        return run_virtually(main())

"""A simulated run: the production run on virtual time, with scripted workers.

Admission, groups, router, fleet, weight updates, flow, stages, trainer, checkpoints, coordinators, recovery and journals are
those of every run. Scripted: the work of engines, trainers, reward workers and environments, and the tasks. Refused or
left out, as they need real processes: a database of groups that is given (`apart.py` gives a run apart one of its own), programs
(they play whole episodes by themselves), weights as files or by broadcast (they go by reference, in the time that the table
says), the watch for hangs (it looks at threads), SIGTERM's last resort (it ends the process).
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.derived import derive
from roll.core.configs.plain import JsonObject
from roll.core.configs.problems import Collector, ConfigError, Problem
from roll.core.configs.rlvr import RLVRConfig
from roll.core.configs.watching import OnEventConfig
from roll.core.data.sample import Prompt
from roll.core.distributed.backend import WorkerSpec
from roll.core.distributed.cluster import Cluster
from roll.core.distributed.devices import Inventory
from roll.core.explorer.agentic import EpisodeSource
from roll.core.flow.flow import Flow
from roll.core.groups.tasks import NoTasks, TaskSource
from roll.core.pipeline.prepared import Prepared
from roll.core.pipeline.run import Run
from roll.core.record.validation import ValidationSet
from roll.core.workers.infer_interface import sampling_params
from roll.plan.contract import contract
from roll.plan.rules.validation import check_config
from roll.plan.rules.warm_start_rules import ROWS
from roll.plan.sharing import with_sharing
from roll.prepare import agentic_run, rlvr_run
from roll.prepare.agentic_run import AgenticPrepared, AgenticRun
from roll.prepare.beginning import standing
from roll.prepare.observers import RunObservers
from roll.prepare.rlvr_run import RLVRPrepared, RLVRRun
from roll.prompts.stored_rows import ANSWERS
from roll.simulate.backend import SimulatedBackend
from roll.simulate.costs import Costs
from roll.simulate.episodes import Numbers, ScriptedEnvironmentWorker, unscripted
from roll.simulate.shared_devices import Part
from roll.simulate.virtual_loop import run_virtually
from roll.simulate.workers import ScriptedInferWorker, ScriptedRewardWorker, ScriptedTrainWorker
from roll.topologies.rows.warm_start import RowsFirst
from roll.topologies.teaching.lessons import teaching

if TYPE_CHECKING:
    from roll.topologies.sql.database import OpenDatabase

GRAINS = 32
"""Simulated tokens of a response of mean length; each stands for several."""
NEVER = 10**9
CHOSEN: Mapping[str, Any] = {
    "track_with": "none",
    "model_update_transport": "object_store",
    "rollout_log_per_step": 0,
    "keep_best": None,
    "early_stopping": None,
    "metrics_address": None,
    "otlp_endpoint": None,
    "on_event": OnEventConfig(),
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


class ScriptedRows(EpisodeSource):
    """Rows of a warm start, numbered, each as long as a prompt and a response are on average."""

    def __init__(self, seed: int, prompt_grains: int, response_grains: int) -> None:
        super().__init__({ROWS: 1.0}, {ROWS: ""}, seed)
        self._prompt, self._answer = prompt_grains, response_grains

    def next(self) -> Prompt:
        prompt = super().next()
        answer = [0] * self._answer, [True] * self._answer, ""
        uid = prompt.uid.removeprefix("train/")
        return replace(prompt, uid=uid, domain=ROWS, input_ids=[0] * self._prompt, row={ANSWERS: [answer]})

    def cursor(self, outstanding: Sequence[Prompt] = ()) -> JsonObject:
        return super().cursor(outstanding) | {"data": {}}


Config: TypeAlias = RLVRConfig | AgenticConfig


@dataclass(frozen=True, slots=True)
class Simulation:
    config: Config
    costs: Costs

    @property
    def grain(self) -> int:
        """Number of tokens that one token of a simulated sample stands for."""
        longest = derive(self.config).max_new_tokens
        return max(1, round(min(self.costs.response_tokens.mean, longest) / GRAINS))

    @property
    def group_tokens(self) -> float:
        """Sampled tokens of a group, on average."""
        turns = self.costs.turns.mean if self.config.multi_turn else 1
        return self.costs.response_tokens.mean * turns * self.config.group_size

    @property
    def inventory(self) -> Inventory:
        config = self.config
        devices = {device for worker in config.roles().values() for device in worker.devices}
        per_node = config.num_gpus_per_node or -(-(max(devices, default=0) + 1) // config.num_nodes)
        return Inventory("cuda", config.num_nodes, per_node, per_node)

    def backend(self) -> SimulatedBackend:
        return SimulatedBackend(self.inventory, self.costs, self.worker)

    def run(self, backend: SimulatedBackend, open_database: OpenDatabase | None = None) -> Run:
        """Makes the run. Raises `ConfigError`."""
        kind = SimulatedEpisodes if self.config.multi_turn else SimulatedRun
        prepared = self.prepared()
        if (address := self.config.groups_address) is not None and open_database is not None:
            from roll.topologies.shared_groups import SharedGroups

            prepared = replace(prepared, database=SharedGroups(self.config, address, open_database))
        return kind(self.config, prepared, self.inventory, backend)

    def prepared(self) -> Prepared:
        """Makes the run that `prepare` makes, without files. Raises `ConfigError`."""
        config, derived, collect = self.config, derive(self.config), Collector()
        kind: type[Prepared]
        if isinstance(config, AgenticConfig):
            kind, filters = AgenticPrepared, agentic_run.group_filters(config, collect)
            own: dict[str, Any] = {"config": config, "rules": _alike(config), "tokenizer_folder": ""}
        else:
            kind, filters = RLVRPrepared, rlvr_run.group_filters(config, collect)
            own = {"config": config, "skipped": {}, "success_at": dict.fromkeys(config.rewards, 1.0)}
        collect.raise_if_any()
        source, run_dir, observers = self._tasks(), Path(derived.run_dir), RunObservers()
        run_dir.mkdir(parents=True, exist_ok=True)
        return kind(
            derived=derived,
            tokenizer=Numbers(),
            source=source,
            beginning=source.cursor(),
            filters=filters,
            checkpoint=None,
            run_dir=run_dir,
            validation=self._sets() if config.has_engines else [],
            observers=observers.reports,
            onlookers=observers.onlookers,
            identity=standing(config, None),
            contract=contract(config),
            teaching=teaching(config),
            **own,
        )

    def worker(self, spec: WorkerSpec, part: Part) -> object:
        """Makes the scripted worker of a specification."""
        role, config, costs = spec.name.rpartition("-")[0], self.config, self.costs
        if role == "actor_infer":
            return ScriptedInferWorker(costs, self.grain, spec.kwargs["options"], part)
        if role == agentic_run.ROLE:
            return ScriptedEnvironmentWorker(costs, self.grain, **spec.kwargs)
        if role.startswith("rewards."):
            side_by_side = config.reward_configs[role.removeprefix("rewards.")].max_concurrency
            return ScriptedRewardWorker(costs, config.seed, side_by_side)
        unseen = int(config.multi_turn and not self._grains)
        return ScriptedTrainWorker(spec.name, costs, self.grain, unseen, part)

    def _tasks(self) -> TaskSource:
        config, tasks = self.config, self._rolled_out()
        if not config.warm_steps:
            return tasks
        answer = round(self.costs.response_tokens.mean / self.grain)
        rows = ScriptedRows(config.seed, self._grains, max(1, answer))
        return RowsFirst(rows, tasks, config.warm_steps * config.groups_per_step)

    def _rolled_out(self) -> TaskSource:
        config = self.config
        if not config.has_engines:
            return NoTasks(config.seed)
        if isinstance(config, AgenticConfig):
            return EpisodeSource(config.domain_weights, _alike(config), config.seed, by_pass_rate=config.pass_rate_mixture)
        return ScriptedTasks(config, self._grains)

    def _sets(self) -> list[ValidationSet]:
        config, sets = self.config, []
        for name, args in config.validation_sampling.items():
            if isinstance(config, AgenticConfig):
                prompts, n = agentic_run.evaluated(config, name, _alike(config))
            else:
                domain, count = next(iter(config.rewards)), config.val_batch_size or round(self.costs.validation_prompts)
                prompts = [Prompt(f"{name}/{i}", [0] * self._grains, "", domain, domain, "") for i in range(count)]
                n = config.validation_attempts[name]
            longest = args.max_new_tokens or derive(config).response_length
            sets.append(ValidationSet(name, tuple(prompts), n, sampling_params(args, longest, ())))
        return sets

    @property
    def _grains(self) -> int:
        """Simulated tokens of a prompt."""
        return round(self.costs.prompt_tokens / self.grain)


def _alike(config: AgenticConfig) -> dict[str, str]:
    return dict.fromkeys(config.custom_envs, "")


class _Unwatched(Run):
    """The production run without onlookers: a display, files that are kept up to date, memory of processes."""

    async def run(self) -> dict[str, Any]:
        try:
            return await super().run()
        except asyncio.CancelledError:  # it would not come to its end: who waits for what is in its trace
            self.state.record.interrupt()
            raise

    def onlookers(self, flow: Flow, clusters: Mapping[str, Cluster]) -> list[Coroutine[object, object, None]]:
        return []


class SimulatedRun(_Unwatched, RLVRRun): ...


class SimulatedEpisodes(_Unwatched, AgenticRun): ...


def simulated(config: Config, folder: Path) -> Config:
    """Returns the configuration as a simulation takes it, in a folder of its own. Raises `ConfigError` for parts that cannot be
    simulated, and for other problems of the configuration."""
    problems = [*(unscripted(config) if isinstance(config, AgenticConfig) else _own_rollouts(config))]
    if not config.has_both_sides:
        problems.append(Problem("mode", config.mode, "one half alone is not simulated", "both, and --explorers"))
    if config.epochs is not None:
        problems.append(Problem("total_epochs", config.epochs, "no prompts are read, so it says no steps", "max_steps"))
    if config.flow.stages:
        problems.append(Problem("flow.stages", len(config.flow.stages), "own stages take real time", "none"))
    for name, teacher in config.teachers.items():
        if teacher.endpoint is not None:
            message = "how long a server outside takes is not known"
            problems.append(Problem(f"teachers.{name}.endpoint", teacher.endpoint, message, "a model on devices"))
    if problems:
        raise ConfigError(problems)
    chosen: dict[str, Any] = {"output_dir": str(folder), "groups_database": None, "resume_from_checkpoint": "auto", **CHOSEN}
    # Nobody goes on from a checkpoint, and nobody hangs: thousands of workers are not asked whether they live.
    chosen |= {"save_steps": NEVER, "heartbeat_timeout": 0.0, "engine_health_interval_s": float(NEVER)}
    config = replace(config, **chosen)
    decided, _ = with_sharing(config, {}, accelerators=False, device_bytes=None)  # no memory is planned
    config = replace(config, sharing=decided.sharing)
    if problems := check_config(config, Simulation(config, Costs()).inventory.count):
        raise ConfigError(problems)
    return config


def _own_rollouts(config: RLVRConfig) -> Iterator[Problem]:
    if config.rollout is not None:
        yield Problem("rollout", config.rollout.function, "rollouts of your own take real time", "none")


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Silences the messages for people that a run prints and logs."""
    logger = logging.getLogger("roll")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


def simulate(simulation: Simulation) -> dict[str, Any]:
    """Returns the summary of the run, which leaves the same files as a real one. Raises `Stuck` if it would
    never end, and `ConfigError`."""

    async def main() -> dict[str, Any]:
        return await simulation.run(simulation.backend()).run()

    with unheard():
        return run_virtually(main())

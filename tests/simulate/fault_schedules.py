"""Runs on virtual time in which workers die, hang, come late and come back, and what has to hold whatever happens."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from roll.cli.verify import read_run, violations
from roll.configs.loading import load_config
from roll.configs.rlvr import RLVRConfig
from roll.errors import EngineError
from roll.simulate.costs import Costs, Spread
from roll.simulate.run import Simulation, simulate, simulated
from roll.simulate.virtual_loop import Stuck

KINDS = (
    "engine dies",
    "engine hangs",
    "engine's node goes",
    "trainer dies",
    "judge dies",
    "judging fails",
    "weights fail",
    "signal",
)
LONGEST_S = 2_000.0
"""Of virtual time, for a run of some steps of some seconds: whoever takes longer does not come to an end."""
MOST_RUNS = 4
"""Of one schedule: each but the last ended by a signal, and resumed."""


@dataclass(frozen=True)
class Fault:
    at_s: float
    kind: str
    whom: int
    lasts_s: float = 0.0
    """How long the node is gone."""


@dataclass(frozen=True)
class Schedule:
    """A run and what happens to it. The same schedule is the same run, event by event."""

    seed: int
    engines: int
    trainers: int
    steps: int
    batch: int
    ratio: float
    save_steps: int
    eval_steps: int
    push: int
    pull: int
    redundant: int
    policy: str
    mode: str
    expand: bool
    on_arrival: bool
    shared: bool
    latency_s: float
    pass_rate: float
    train_s: float
    faults: tuple[Fault, ...]


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    ratio = draw(st.sampled_from([0.0, 1.0, 0.5, 2.0]))
    push = draw(st.sampled_from([1, 1, 2])) if ratio >= 1 else 1
    shared = draw(st.booleans()) if ratio == 0 else False
    on_arrival = draw(st.booleans()) if push == 1 and not shared else False
    whole = ratio.is_integer()
    redundant = draw(st.sampled_from([0, 0, 1])) if whole and not on_arrival else 0
    faults = st.builds(
        Fault,
        at_s=st.floats(0, 40).map(lambda s: round(s, 2)),
        kind=st.sampled_from(KINDS),
        whom=st.integers(0, 3),
        lasts_s=st.floats(0, 30).map(lambda s: round(s, 1)),
    )
    return Schedule(
        seed=draw(st.integers(0, 999)),
        engines=draw(st.integers(1, 3)),
        trainers=draw(st.integers(1, 2)),
        steps=draw(st.integers(2, 5)),
        batch=draw(st.integers(2, 4)),
        ratio=ratio,
        save_steps=draw(st.integers(1, 3)),
        eval_steps=draw(st.sampled_from([100, 1, 2])),
        push=push,
        pull=draw(st.sampled_from([0, 0, 2])) if ratio > push - 1 else 0,
        redundant=redundant,
        policy=draw(st.sampled_from(["wait", "wait", "drop"])) if ratio else "wait",
        mode=draw(st.sampled_from(["interrupt", "in_flight", "drain"])),
        expand=draw(st.booleans()),
        on_arrival=on_arrival,
        shared=shared,
        latency_s=draw(st.sampled_from([0.0, 0.05, 1.0])),
        pass_rate=draw(st.sampled_from([0.5, 0.9])),
        train_s=draw(st.sampled_from([1.5, 6.0, 0.5])),
        faults=tuple(draw(st.lists(faults, max_size=6))),
    )


def config_of(schedule: Schedule, folder: Path) -> RLVRConfig:
    trainers = list(range(schedule.trainers))
    engines = list(range(schedule.engines)) if schedule.shared else [schedule.trainers + i for i in range(schedule.engines)]
    mapping = {
        "exp_name": "run",
        "output_dir": str(folder),
        "pretrain": "no/model",
        "seed": schedule.seed,
        "max_steps": schedule.steps,
        "save_steps": schedule.save_steps,
        "eval_steps": schedule.eval_steps,
        "num_gpus_per_node": schedule.trainers + schedule.engines,
        "rollout_batch_size": schedule.batch,
        "num_return_sequences_in_group": 2,
        "is_num_return_sequences_expand": schedule.expand,
        "prompt_length": 64,
        "response_length": 64,
        "max_running_requests": 4,
        "rpc_timeout": 200.0,
        "heartbeat_timeout": 30.0,
        "engine_health_timeout_s": 15.0,
        "max_engine_restarts": 1000,
        "max_trainer_restarts": 1000,
        "async_generation_ratio": schedule.ratio,
        "weight_push_interval": schedule.push,
        "weight_pull_interval": schedule.pull,
        "weight_update_mode": schedule.mode,
        "redundant_groups": schedule.redundant,
        "staleness_policy": schedule.policy,
        "train_on_arrival": schedule.on_arrival,
        "actor_train": {
            "device_mapping": trainers,
            "training_args": {
                "per_device_train_batch_size": 1,
                "gradient_accumulation_steps": 2 * schedule.batch // trainers.__len__(),
            },
            "data_args": {"file_name": "no/prompts.jsonl"},
            "strategy_args": {"strategy_name": "fsdp2_train"},
        },
        "actor_infer": {"device_mapping": engines, "strategy_args": {"strategy_name": "vllm"}},
        "rewards": {
            "sums": {
                "worker_cls": "roll.pipeline.rlvr.rewards.exact_match_reward_worker.ExactMatchRewardWorker",
                "tag_included": ["sums"],
                "world_size": 2,
                "query_filter_config": {"type": "std_filter", "filter_args": {"std_threshold": 0.0}},
            }
        },
        "validation": {"data_args": {"file_name": "no/validation.jsonl"}, "generating_args": {"temperature": 1.0}},
        "val_batch_size": 2,
    }
    return load_config(RLVRConfig, mapping)


COSTS = {
    "tokens_per_s": ((1.0, 20.0), (4.0, 40.0)),
    "response_tokens": Spread(20.0, 0.6),
    "reward_s": Spread(0.4, 1.0),
    "weights_mb": 1.0,
    "weights_mb_per_s": 2.0,
    "flip_s": 0.2,
    "gather_s": 0.3,
    "turn_s": 0.1,
    "start_s": 1.0,
    "snapshot_s": 0.1,
    "write_s": 1.0,
}


def broken_promises(schedule: Schedule, folder: Path) -> list[str]:
    """What did not hold in the run of the schedule, in words; nothing if all did."""
    shutil.rmtree(folder, ignore_errors=True)
    config = simulated(config_of(schedule, folder), folder, checkpoints=True)
    simulation = Simulation(config, Costs(**COSTS, pass_rate=schedule.pass_rate, train_s=schedule.train_s))
    found: list[str] = []
    offset = 0.0
    for number in itertools.count(1):
        last = number == MOST_RUNS
        watch = Watch(schedule, offset, last=last)
        try:
            summary = simulate(simulation, beside=watch.run, resume=True)
        except Stuck as error:
            return [*found, f"run {number} waits for ever: {error}"]
        except asyncio.CancelledError:
            return [*found, *watch.found]
        offset += watch.lasted_s
        found += watch.found
        if summary["status"] == "interrupted":
            expected = watch.signalled
        elif watch.signalled and "of role actor_train died" in summary["reason"]:
            expected = True  # a run that is about to stop does not restart its trainer: it has failed, and can be resumed
        else:  # roles cannot all start without the node: somebody starts the run again
            expected = summary["status"] == "failed" and summary["reason"].endswith("is gone")
        if not expected or last:
            break
    if summary["status"] != "finished":
        found.append(f"run {number} has {summary['status']}: {summary['reason']}")
    elif summary["steps"] != schedule.steps:
        found.append(f"{summary['steps']} of {schedule.steps} steps are trained")
    found += violations(read_run(Path(config.run_dir)))
    found += lost_tasks(Path(config.run_dir))
    return [*found, *simulation.wrong, *after_the_end(summary)]


def lost_tasks(run_dir: Path) -> list[str]:
    """Every task that was drawn has met a fate, of a run that was started again, too."""
    fates = [json.loads(line) for line in (run_dir / "groups.jsonl").read_text().splitlines()]
    numbers = {int(row["prompt_uid"].rpartition("/")[2]) for row in fates}
    missing = sorted(set(range(max(numbers, default=-1) + 1)) - numbers)
    return [f"the tasks {missing[:5]} were drawn and have no fate"] if missing else []


def after_the_end(summary: dict) -> list[str]:
    groups = summary["groups"]
    left = [f"{groups[where]} groups are {where} at the end" for where in ("buffered", "in_flight") if groups[where]]
    staleness = summary["staleness"]
    late = [f"staleness {staleness['max']} is above {staleness['bound']}"] if staleness["max"] > staleness["bound"] else []
    return (left if summary["status"] == "finished" else []) + late


class Watch:
    """Runs beside a run: brings the faults about, and looks on."""

    def __init__(self, schedule: Schedule, offset: float, last: bool) -> None:
        self._schedule, self._offset, self._last = schedule, offset, last
        self._random = random.Random(schedule.seed)
        self._weights_fail = Counter()
        self.signalled = False
        self.found: list[str] = []
        self.lasted_s = 0.0

    async def run(self, run, backend) -> None:
        loop = asyncio.get_running_loop()
        if latency := self._schedule.latency_s:
            backend.links.latency = lambda: self._random.uniform(0, latency)
        backend.links.fault = self._fault
        for fault in self._schedule.faults:
            if (delay := fault.at_s - self._offset) >= 0:
                loop.call_later(delay, self._bring, fault, run, backend)
        loop.call_later(LONGEST_S, run._task.cancel)
        try:
            await self._look(run)
        finally:
            self.lasted_s = loop.time()
            if self.lasted_s >= LONGEST_S:
                self.found.append(f"run does not end within {LONGEST_S:g} s: {run.state.groups.changes.waits}")

    async def _look(self, run) -> None:
        """Versions only go forward, but where the trainer goes back to a checkpoint; what steps hold is what was admitted."""
        seen, groups = 0, None
        while True:
            state = run.state
            if state.groups is not groups:
                groups, seen = state.groups, state.first_step
            admission = groups.admission
            if admission.version < seen:
                self.found.append(f"version {admission.version} is served after {seen}")
            if admission.version > state.record.step:
                self.found.append(f"version {admission.version} is served, and {state.record.step} steps are trained")
            if len(admission.live) > admission.most_live and not state.first_step:
                self.found.append(f"{len(admission.live)} groups are live, at most {admission.most_live} may be")
            seen = max(seen, admission.version)
            await asyncio.sleep(0.25)

    def _fault(self, name: str, method: str) -> Exception | None:
        if method in ("receive_bucket", "activate_weights") and self._weights_fail[name]:
            self._weights_fail[name] -= 1
            return EngineError("a scripted failure")
        return None

    def _bring(self, fault: Fault, run, backend) -> None:
        names = {
            role: sorted(name for name in backend.workers if name.startswith(role))
            for role in ("actor_infer", "actor_train", "rewards")
        }

        def one(role: str):
            found = names[role]
            return backend.workers[found[fault.whom % len(found)]] if found else None

        match fault.kind:
            case "engine dies" | "trainer dies" | "judge dies":
                role = {"engine dies": "actor_infer", "trainer dies": "actor_train", "judge dies": "rewards"}[fault.kind]
                if (worker := one(role)) and run._components is not None:
                    worker.kill()
            case "engine hangs":
                if (worker := one("actor_infer")) and run._components is not None:
                    worker.hang()
            case "engine's node goes" if not self._last:
                if (
                    (worker := one("actor_infer"))
                    and run._components is not None
                    and len(names["actor_infer"]) > 1
                    and not backend.without_node
                ):
                    backend.without_node.add(worker.name)
                    worker.kill()
                    asyncio.get_running_loop().call_later(fault.lasts_s, backend.without_node.discard, worker.name)
            case "judging fails":
                if worker := one("rewards"):
                    worker.worker.fails += 3
            case "weights fail":
                if worker := one("actor_infer"):
                    self._weights_fail[worker.name] += 1
            case "signal" if not self._last:
                self.signalled = True
                run.interrupt()

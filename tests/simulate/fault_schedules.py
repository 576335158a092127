"""Schedules of faults: a small run, and when its workers die, hang, come late and come back. promises.py: what has to hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from roll.core.configs.rlvr import RLVRConfig
from roll.plan.rules.loading import load_config
from roll.simulate.costs import Spread

KINDS = (
    "engine dies",
    "engine hangs",
    "engine's node goes",
    "trainer dies",
    "trainer hangs",
    "trainer's node goes",
    "judge dies",
    "judge hangs",
    "judge's node goes",
    "judging fails",
    "weights fail",
    "writing fails",
    "links are slow",
    "signal",
    "SIGTERM",
)


@dataclass(frozen=True)
class Fault:
    at_s: float
    kind: str
    whom: int
    lasts_s: float = 0.0
    """How long the node is gone, or messages take their time."""


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
    validated: int
    """Prompts of a validation."""
    push: int
    pull: int
    redundant: int
    policy: str
    mode: str
    expand: bool
    on_arrival: bool
    shared: bool
    copy: str
    """Of the policy, which scores in the trainer's place (actor_log_prob): its lag. "": there is none."""
    newest_first: bool
    reuse: int
    synchronous_after: int
    watched: bool
    """By a callback, which is told of each group on a thread: the loop turns meanwhile."""
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
    policy = draw(st.sampled_from(["wait", "wait", "drop"])) if ratio else "wait"
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
        validated=draw(st.sampled_from([2, 2, 12])),
        push=push,
        pull=draw(st.sampled_from([0, 0, 2])) if ratio > push - 1 else 0,
        redundant=redundant,
        policy=policy,
        mode=draw(st.sampled_from(["interrupt", "in_flight", "drain"])),
        expand=draw(st.booleans()),
        on_arrival=on_arrival,
        shared=shared,
        copy=draw(st.sampled_from(["", "", "auto", "0"])) if push == 1 and not shared and not on_arrival else "",
        newest_first=draw(st.booleans()) if policy == "drop" else False,
        reuse=draw(st.sampled_from([1, 1, 2])) if ratio >= 2 and push == 1 and not on_arrival else 1,
        synchronous_after=draw(st.sampled_from([0, 0, 1])) if ratio and push == 1 else 0,
        watched=draw(st.booleans()),
        latency_s=draw(st.sampled_from([0.0, 0.05, 1.0])),
        pass_rate=draw(st.sampled_from([0.5, 0.9])),
        train_s=draw(st.sampled_from([1.5, 6.0, 0.5])),
        faults=tuple(draw(st.lists(faults, max_size=6))),
    )


def config_of(schedule: Schedule, folder: Path) -> RLVRConfig:
    trainers = list(range(schedule.trainers))
    engines = list(range(schedule.engines)) if schedule.shared else [schedule.trainers + i for i in range(schedule.engines)]
    role = {"device_mapping": [trainers[-1] + len(engines) + 1], "lag": int(schedule.copy) if schedule.copy == "0" else "auto"}
    copy = {"old_logprobs": "recompute", "actor_log_prob": role}
    mapping = {
        **(copy if schedule.copy else {}),
        "exp_name": "run",
        "output_dir": str(folder),
        "pretrain": "no/model",
        "seed": schedule.seed,
        "max_steps": schedule.steps,
        "save_steps": schedule.save_steps,
        "eval_steps": schedule.eval_steps,
        "num_gpus_per_node": schedule.trainers + schedule.engines + bool(schedule.copy),
        "rollout_batch_size": schedule.batch,
        "num_return_sequences_in_group": 2,
        "is_num_return_sequences_expand": schedule.expand,
        "prompt_length": 64,
        "response_length": 64,
        "max_running_requests": 4,
        "rpc_timeout": 200.0,
        "heartbeat_timeout": 30.0,
        "engine_health_timeout_s": 15.0,
        "max_dropped_batches": 0,
        "max_engine_restarts": 1000,
        "max_trainer_restarts": 1000,
        "async_generation_ratio": schedule.ratio,
        "weight_push_interval": schedule.push,
        "weight_pull_interval": schedule.pull,
        "weight_update_mode": schedule.mode,
        "redundant_groups": schedule.redundant,
        "staleness_policy": schedule.policy,
        "train_on_arrival": schedule.on_arrival,
        "groups_order": "newest" if schedule.newest_first else "fifo",
        "max_reuse": schedule.reuse,
        "synchronous_after_failures": schedule.synchronous_after,
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
        "val_batch_size": schedule.validated,
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

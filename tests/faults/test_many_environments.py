"""Twenty kinds of environments in one asynchronous run, some in processes, one in an interpreter of its own: killed, resumed, and
every kind has its share to the group."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from typing import Any

import yaml

from roll.cli.verify import GIVEN_BACK
from roll.core.record.journal import read_rows

TAGS = [f"kind{i}" for i in range(20)]
GROUPS = {tag: 1 for tag in TAGS} | {"kind3": 3, "kind7": 2}
STEPS, BATCH, GROUP = 8, 20, 2
SYMBOLS = {"player": "a", "frozen": "b", "hole": "c", "goal": "d", "fallen": "x", "arrived": "y"}
FROZEN_LAKE = {"env_type": "frozen_lake", "env_config": {"size": 2, "grid_vocabulary": SYMBOLS}}
ENVIRONMENTS: dict[str, dict[str, Any]] = {tag: {"env_type": "fault_workers.Letters", "max_steps": 3} for tag in TAGS} | {
    "kind3": {"env_type": "fault_workers.Letters", "max_steps": 3, "execution": "process"},
    "kind5": FROZEN_LAKE | {"max_steps": 2},
    "kind7": FROZEN_LAKE | {"max_steps": 2, "python": sys.executable},
}


def _flow(mapping: dict[str, Any]) -> str:
    return str(yaml.safe_dump(mapping, default_flow_style=True, width=1000)).strip()


def overrides(*more: str) -> list[str]:
    named = [f"+custom_envs.{tag}={_flow(env)}" for tag, env in ENVIRONMENTS.items()]
    return [
        "~custom_envs.letters",
        *named,
        f"max_steps={STEPS}",
        "save_steps=2",
        f"rollout_batch_size={BATCH * GROUP}",
        f"actor_train.training_args.per_device_train_batch_size={BATCH * GROUP}",
        f"train_env_manager.num_env_groups={sum(GROUPS.values())}",
        f"+train_env_manager.num_groups_partition=[{','.join(map(str, GROUPS.values()))}]",
        "train_env_manager.max_env_num_per_worker=64",
        "resume_from_checkpoint=auto",
        *more,
    ]


def test_twenty_kinds_of_environments_have_their_shares_to_the_group_after_a_kill(launch):
    killed = launch(*overrides(), agentic=True)
    killed.wait_for_checkpoint(4)
    killed.signal(signal.SIGKILL)
    assert killed.end() == -signal.SIGKILL
    last = launch(*overrides(), agentic=True)
    assert last.end() == 0, last.output
    summary = last.summary()
    assert summary["steps"] == STEPS and summary["resumed_from_step"] >= 4

    rows = list(read_rows(last.dir / "groups.jsonl"))
    served = [row["prompt_uid"].split("/") for row in rows if row["reason"] not in GIVEN_BACK]
    played = Counter(tag for _, tag, _ in served)
    for tag, count in GROUPS.items():
        numbers = sorted(int(number) for _, its, number in served if its == tag)
        assert numbers == list(range(played[tag])), "an environment is lost, or was played twice"
        assert abs(played[tag] - len(served) * count / sum(GROUPS.values())) <= 1
    trained = Counter(row["prompt_uid"].split("/")[1] for row in rows if row["status"] == "trained")
    assert trained.total() == STEPS * BATCH

    assert {tag: found["episodes"] for tag, found in summary["tags"].items()} == {
        tag: GROUP * trained[tag] for tag in sorted(TAGS)
    }
    table = last.output.split("episodes  share")[1].splitlines()[1:21]
    assert [line.split()[0] for line in table] == sorted(TAGS)

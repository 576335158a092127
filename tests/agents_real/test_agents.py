"""Each program, as it is, through the gateway: played by a player who says the right thing, and in a run of the agentic pipeline.

What the run trains is a tiny model that was taught the program's conversations, and hesitates.
"""

from __future__ import annotations

import json

import pytest
from lessons import make_model, record
from roster import AGENTS
from train import EPISODES, python_of, rows, train

from roll.cli.main import run_command

LEAST = 20
"""Episodes that are trained."""


@pytest.mark.parametrize("name", AGENTS)
def test_a_program_as_it_is_is_played_and_trained(name, tmp_path):
    agent = AGENTS[name]
    python = python_of(agent)
    if not python.exists():
        pytest.skip(f"there is no {python}: make test-agents makes it")
    played = record(name, agent, python, EPISODES)
    perfect = [each for each in played if each.perfect]
    assert len(perfect) >= 4 and len({sample.reward for each in played for sample in each.samples}) > 1
    for each in perfect:
        trajectory = each.samples[0].trajectory
        assert (trajectory.score, trajectory.success, trajectory.end) == (1.0, True, "terminated")
        assert (trajectory.num_turns, len(each.samples)) == (agent.calls, agent.conversations)
        assert sum(len(sample.trajectory.turns) for sample in each.samples) == agent.calls

    make_model(tmp_path / "model", [each for episode in played for each in episode.lessons], agent.player)
    run = train(name, tmp_path / "model", tmp_path)
    summary = json.loads((run / "summary.json").read_text())
    trained = [row for row in rows(run / "groups.jsonl") if row["status"] == "trained"]
    rewards = [reward for row in trained for reward in row["rewards"]]
    assert summary["status"] == "finished" and len(rewards) >= LEAST
    assert max(rewards) == 1.0 and len({*rewards}) > 1
    steps = [row for row in rows(run / "metrics.jsonl") if "time/step_s" in row]
    assert max(row["actor/engine_mismatch_max"] for row in steps) < 1e-4, "the trainer sees the tokens that were sampled"
    assert any(row["actor_train/grad_norm"] > 0 for row in steps)
    assert run_command(["verify", str(run)]) == 0

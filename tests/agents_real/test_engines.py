"""A program through the gateway with the engines of others behind it: the log-probs are those of the trainer."""

from __future__ import annotations

import json
import os
import sys

import pytest
from lessons import Settings, make_model, record
from roster import AGENTS
from train import EPISODES, python_of, rows, train

from roll.cli.main import run_command

NAME = "openai_loop"
PYTHONS = {"vllm": sys.executable, "sglang": os.environ.get("SGLANG_PYTHON")}


@pytest.mark.parametrize("engine", PYTHONS)
def test_a_program_is_played_and_trained_with_another_engine(engine, tmp_path):
    agent, python = AGENTS[NAME], PYTHONS[engine]
    if python is None:
        pytest.skip("needs SGLANG_PYTHON (make env-sglang)")
    if engine == "vllm":
        pytest.importorskip("vllm")
    if not python_of(agent).exists():
        pytest.skip(f"there is no {python_of(agent)}: make test-agents makes it")
    lessons = [each for episode in record(NAME, agent, python_of(agent), EPISODES) for each in episode.lessons]
    make_model(tmp_path / "model", lessons, agent.player, Settings(heads=2))  # they have heads of 32 and more on CPU
    infer = {"strategy_name": engine, "strategy_config": {"python": python}}
    run = train(NAME, tmp_path / "model", tmp_path, actor_infer={"device_mapping": "list(range(1,2))", "strategy_args": infer})
    summary = json.loads((run / "summary.json").read_text())
    trained = [row for row in rows(run / "groups.jsonl") if row["status"] == "trained"]
    rewards = [reward for row in trained for reward in row["rewards"]]
    assert summary["status"] == "finished" and not summary["environment_failures"]
    assert len(rewards) == 2 * 12 and max(rewards) == 1.0 and len({*rewards}) > 1
    steps = [row for row in rows(run / "metrics.jsonl") if "time/step_s" in row]
    assert max(row["actor/engine_mismatch_max"] for row in steps) < 1e-4, "the trainer sees the tokens that were sampled"
    assert run_command(["verify", str(run)]) == 0

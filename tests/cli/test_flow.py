"""`roll check --flow`: what it draws is what a run is made of, and the documentation shows what it draws."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from roll.cli.flow import graph_of
from roll.cli.main import main
from roll.prepare.compose import load
from roll.prepare.training_flow import AsyncTrainingFlow

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "examples" / "config"
PENALTY = "{after: reward, name: length_penalty, worker: length_penalty.length_penalty, args: {free: 4, each: 0.1}}"


def flow(*arguments, name="rlvr_config_async", folder=CONFIGS):
    return main(["check", "--flow", "--config_path", str(folder), "--config_name", name, *arguments])


def graph(folder, name, *overrides):
    config, _ = load(folder, name, overrides)
    return graph_of(AsyncTrainingFlow(config).pipeline.outline(), config)


def places(graph):
    return {title: [[node.name for node in place] for place in half] for title, half in graph.halves.items()}


def test_the_documents_have_what_the_command_prints(capsys, monkeypatch):
    demo, critic = re.findall(r"```mermaid\n(.*?)```", (ROOT / "docs_roll" / "flow.md").read_text(), re.DOTALL)
    assert flow() == 0
    assert capsys.readouterr().out == demo
    monkeypatch.chdir(ROOT / "examples" / "custom_stages")
    assert flow(f"flow.stages=[{PENALTY}]", name="rlvr_ppo_critic") == 0
    assert capsys.readouterr().out == critic


def test_every_stage_and_arrow_is_drawn_and_it_says_which_roles_share_a_device(capsys):
    assert flow(name="rlvr_ppo_critic") == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    drawn = graph(CONFIGS, "rlvr_ppo_critic")
    for node in {node.name for half in drawn.halves.values() for place in half for node in place} | {"groups", "weights"}:
        assert len([line for line in lines if f"<b>{node}</b>" in line]) == 1, node
    assert len([line for line in lines if "->" in line]) == len(drawn.edges)
    assert 'lock1["lock 1: actor_train and critic take turns on device 0"]' in lines


def test_the_graph_is_also_data(capsys):
    assert flow("--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [node["name"] for node in told["stores"]] == ["groups", "weights"] and {"explorer", "trainer"} <= told["halves"].keys()


def test_stages_side_by_side_share_a_place_and_each_has_its_arrows():
    drawn = graph(CONFIGS, "rlvr_ppo_critic")
    assert ["critic", "policy"] in places(drawn)["trainer"]
    assert {(edge.start, edge.end) for edge in drawn.edges} >= {
        ("advantage", "critic"),
        ("advantage", "policy"),
        ("policy", "gather"),
    }


def test_each_process_of_a_run_has_its_half():
    folder = ROOT / "examples" / "async_gsm8k"
    assert places(graph(folder, "trainer")) == {"trainer": [["lease"], ["advantage"], ["train"], ["publish"]]}
    assert places(graph(folder, "explorer")) == {
        "explorer": [["admit"], ["generate"], ["reward"], ["keep"]],
        "validation": [["served"], ["validate"]],
    }


def test_an_agentic_run_has_its_own_rollouts():
    assert places(graph(CONFIGS, "agent_val_frozen_lake_async"))["explorer"] == [["admit"], ["episodes"], ["keep"]]


def test_a_stage_of_ones_own_is_in_the_graph(capsys, monkeypatch):
    monkeypatch.chdir(ROOT / "examples" / "custom_stages")
    assert flow(f"flow.stages=[{PENALTY}]") == 0
    told = capsys.readouterr().out
    assert 's_length_penalty[["<b>length_penalty</b><br/>your own"]]' in told
    assert "s_reward -->|1| s_length_penalty" in told and "s_length_penalty -->|1| s_keep" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            (f"flow.stages=[{PENALTY.replace('reward', 'rewards')}]",),
            "flow.stages.length_penalty.after = 'rewards': there is no such",
        ),
        (("max_stepz=1",), "did you mean max_steps?"),
        (("async_generation_ratio=-1",), "must be >= 0"),
    ],
)
def test_what_is_wrong_is_one_line(arguments, told, capsys, monkeypatch):
    monkeypatch.chdir(ROOT / "examples" / "custom_stages")
    assert flow(*arguments) == 1
    line, _ = capsys.readouterr().err.splitlines()
    assert told in line


def test_a_check_looks_at_where_custom_stages_stand_and_not_for_their_code(capsys):
    folder = ["--config_path", str(ROOT / "examples" / "config"), "--config_name", "rlvr_config_async"]
    assert main(["check", *folder, "flow.stages=[{after: reward, name: mine, worker: on.another.machine}]"]) == 0
    capsys.readouterr()
    assert main(["check", *folder, "flow.stages=[{after: rewards, name: mine, worker: on.another.machine}]"]) == 1
    assert "flow.stages.mine.after = 'rewards': there is no such stage" in capsys.readouterr().err


def test_help_and_typos_are_answered_before_torch_is_imported():
    program = (
        "import sys; from roll.cli.main import main; main(['check', '--flow', 'max_stepz=1']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr

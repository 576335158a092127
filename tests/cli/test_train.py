"""`roll train` before anything heavy is imported: its help, what it refuses, and how a missing model is made."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import roll
from roll.cli.main import main
from roll.core.distributed.machine import Machine
from roll.prepare.check import contradictions
from roll.prepare.compose import load
from roll.prepare.packaged import embedded_model, missing_model

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "ray", "vllm", "deepspeed", "numpy", "matplotlib")


def in_a_process(program: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "COLUMNS": "100"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, env=environment)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("async_generation_ratio=-1", "async_generation_ratio = -1.0: must be >= 0"),
        ("actor_train.pg_variant=pop", "actor_train.pg_variant = 'pop': is not a policy loss; fix: did you mean ppo?"),
        ("actor_infer.device_mapping='99'", "no device 99"),
        ("adv_estimator=gae", "critic"),
        ("max_stepz=3", "did you mean max_steps?"),
    ],
)
def test_a_contradiction_is_refused_before_torch_is_imported(override, told, tmp_path):
    program = (
        "import sys\n"
        "from roll.cli.main import main\n"
        "code = main(['train', 'rlvr', *sys.argv[1:]])\n"
        f"print([name for name in {HEAVY} if name in sys.modules])\n"
        "sys.exit(code)\n"
    )
    done = in_a_process(program, override, folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ") and told in done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert list(tmp_path.iterdir()) == []


def test_what_only_a_torch_for_gpus_would_refuse_is_left_to_torch():
    """A machine with one accelerator, whose torch may be a build for CPUs: two CPU slots, and device 1 exists."""
    config, _ = load(ROOT / "examples" / "config", "rlvr_config_async")
    machine = Machine(cpus=2, memory=1 << 34, accelerators=(1 << 34,))
    assert contradictions(config, machine) == []
    (problem,) = contradictions(replace(config, num_gpus_per_node=1), machine)
    assert "no device 1" in problem.message


@pytest.mark.parametrize(
    ("script", "name", "maker", "demo"),
    [
        ("start_rlvr_pipeline.py", "rlvr_config_async", "examples/embedded/make_embedded.py", "roll demo"),
        (
            "start_agentic_pipeline.py",
            "agent_val_frozen_lake_async",
            "examples/embedded/make_frozen_lake.py",
            "roll demo agentic",
        ),
        (
            "start_agentic_pipeline.py",
            "agent_val_sokoban",
            "examples/embedded/make_sokoban.py",
            "roll demo agentic --config_name agent_val_sokoban",
        ),
        (
            "start_agentic_pipeline.py",
            "agent_program_async",
            "examples/embedded/make_shop_agent.py",
            "roll demo agentic --config_name agent_program_async",
        ),
    ],
)
def test_the_first_command_on_a_bare_clone_says_how_the_model_is_made(script, name, maker, demo, tmp_path):
    start = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
    done = in_a_process(start, str(ROOT / "examples" / script), "--config_name", name, folder=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "pretrain = " in line and f"`{demo}`" in line
    assert f"python {ROOT / maker} --out examples/embedded/" in line
    assert (ROOT / maker).is_file()


def test_in_the_checkout_the_maker_is_named_as_one_types_it(monkeypatch):
    monkeypatch.chdir(ROOT)
    model = embedded_model("examples/embedded/cache/model")
    assert model is not None and "`python examples/embedded/make_embedded.py`" in model.how_to_make


def test_of_an_installed_package_no_path_is_named():
    model = embedded_model("examples/embedded/cache/model")
    installed = replace(model, script=Path(roll.__file__).parent / "examples" / "embedded" / model.script.name)
    assert installed.how_to_make.startswith("`roll demo` makes it (half a minute), and trains; a file of yours is --config_path ")


def test_a_model_that_is_there_or_is_not_ours_is_no_problem(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [problem.key for problem in missing_model("embedded/cache/model")] == ["pretrain"]
    (tmp_path / "embedded/cache/model").mkdir(parents=True)
    (tmp_path / "embedded/cache/model/config.json").touch()
    assert missing_model("embedded/cache/model") == missing_model("/models/Qwen") == missing_model(None) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--help"],
            [
                "usage: roll train rlvr|agentic|sft|dpo ",
                "rlvr_config_async or agent_val_frozen_lake_async or sft_config or dpo_config",
            ],
        ),
        (["rlvr", "--help"], ["usage: roll train rlvr ", "default: rlvr_config_async)"]),
        (["agentic", "--help"], ["usage: roll train agentic ", "default: agent_val_frozen_lake_async)"]),
    ],
)
def test_help_needs_no_pipeline(arguments, told, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    try:
        code = main(["train", *arguments])
    except SystemExit as end:
        code = end.code
    assert code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(part in shown for part in told), shown


@pytest.mark.parametrize("script", ["start_rlvr_pipeline.py", "start_agentic_pipeline.py"])
def test_a_script_calls_itself_by_its_own_name(script):
    command = [sys.executable, f"examples/{script}", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env={"PYTHONPATH": str(ROOT)})
    assert done.stdout.startswith(f"usage: python examples/{script} "), done.stdout + done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "demo",
        "init",
        "check",
        "eval",
        "doctor",
        "env audit",
        "env check",
        "env play",
        "show",
        "ui",
        "diff",
        "verify",
        "export",
        "completion",
    ],
)
def test_every_command_names_itself_in_its_usage(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: roll {command}")

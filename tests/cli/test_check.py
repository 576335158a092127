"""`roll check`: the examples, the picture of the devices, the data form, and errors with file, line, value, rule and fix."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from roll.cli.check import main
from roll.cli.options import config_folder
from roll.core.configs.dotted_path import import_object
from roll.core.configs.problems import ConfigError
from roll.core.distributed.machine import Machine
from roll.core.weights.folder_files import beyond_context
from roll.plan.counts import RolePlan
from roll.plan.text import FREE, SHARED, USED, condensed, picture, size
from roll.prepare.check import check
from roll.prepare.compose import load

ROOT = Path(__file__).parents[2]
WHOLE = re.compile(r"^(exp_name|mode):", re.MULTILINE)
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*/*.yaml") if path.stem != "base" and WHOLE.search(path.read_text()))
GIB = 1 << 30
LAPTOP = Machine(cpus=2, memory=16 * GIB, accelerators=())
SERVER = Machine(cpus=64, memory=1024 * GIB, accelerators=(80 * GIB,) * 8)


def test_the_examples_named_in_the_documentation_are_there():
    names = {f"{path.parent.name}/{path.stem}" for path in EXAMPLES}
    assert names >= {
        "config/rlvr_config",
        "config/rlvr_config_async",
        "qwen2.5-7B-rlvr_megatron/rlvr_config_async",
        "qwen2.5-7B-rlvr-offpolicy/rlvr_config",
        "qwen2.5-0.5B-agentic/agent_val_frozen_lake_async",
        "qwen2.5-gsm8k/full",
        "qwen2.5-gsm8k/lora",
        "async_gsm8k/trainer",
        "async_gsm8k/explorer",
        "async_gsm8k/explorer_new",
        "tool_wrapper/embedded",
        "tool_agent/embedded",
        "tool_agent/qwen",
    }


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_example_passes_in_its_strict_form(example, capsys):
    code = main(["--config_path", str(example.parent), "--config_name", example.stem, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert code == 0, told["problems"]
    report = told["report"]
    assert not report["aliased"] and not report["without_effect"] and not report["lacking"] and not report["unknown"]
    assert told["plan"]["quantities"][0]["name"] == "pipeline steps"


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        (
            "{strategy_name: sglang, strategy_config: {python: /no/python}}",
            "strategy_config.python = '/no/python': /no/python: No such",
        ),
        (
            "{strategy_name: vllm, strategy_config: {python: /no/python}}",
            "strategy_config.python = '/no/python': /no/python: No such",
        ),
        (
            "{strategy_name: vllm, strategy_config: {pythn: x}}",
            "strategy_config.pythn = 'x': is not an argument of the installed",
        ),
    ],
)
def test_an_engine_that_this_machine_cannot_start_is_remarked_upon(engine, told, capsys):
    """The plan is shown all the same: it may be for another machine."""
    if "pythn" in engine and importlib.util.find_spec("vllm") is None:
        pytest.skip("needs requirements/vllm.txt")
    assert main(["--config_name", "rlvr_config_async", f"++actor_infer.strategy_args={engine}"]) == 0
    assert f"  ! a run on this machine would be refused: actor_infer.strategy_args.{told}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("folder", "name", "overrides"),
    [
        (
            "qwen2.5-7B-rlvr_megatron",
            "rlvr_config_async",
            "num_nodes=1 actor_train.device_mapping=0-3 actor_infer.device_mapping=4-7 "
            "actor_train.training_args.gradient_accumulation_steps=256",
        ),
        (
            "qwen2.5-7B-rlvr-offpolicy",
            "rlvr_config",
            "async_generation_ratio=2 actor_infer.device_mapping=8-15 actor_train.device_mapping=0-7 "
            "reference.device_mapping=0-7 actor_train.training_args.gradient_accumulation_steps=128",
        ),
    ],
)
def test_the_changes_that_a_readme_proposes_work(folder, name, overrides):
    page = (ROOT / "examples" / folder / "README.md").read_text()
    assert all(override in page for override in overrides.split() if "reference" not in override)
    assert main(["--config_path", f"pkg://{folder}", "--config_name", name, *overrides.split()]) == 0


def test_the_examples_of_the_package_are_named_as_such(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert config_folder("pkg://qwen2.5-7B-rlvr_megatron") == ROOT / "examples" / "qwen2.5-7B-rlvr_megatron"
    assert config_folder(None) == ROOT / "examples" / "config"
    (tmp_path / "examples" / "config").mkdir(parents=True)
    assert config_folder(None) == tmp_path / "examples" / "config"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--config_path", "my/run.yaml"], "--config_path = 'my/run.yaml': is a file; fix: --config_path my --config_name run"),
        (["--config_path", "my", "--config_name=b.yml"], "config_name = 'b.yml': {}/my has no b.yaml; fix: rename it to b.yaml"),
        (["-max_steps=3"], "command line = '-max_steps=3': unknown option; fix: overrides are written key=value"),
    ],
)
def test_slips_of_the_command_line_are_told_with_what_was_meant(given, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my").mkdir()
    for name in ("run.yaml", "b.yml"):
        (tmp_path / "my" / name).write_text("max_steps: 3\n")
    assert main(given) == 1
    assert capsys.readouterr().err.splitlines()[0] == f"error: {told.format(tmp_path)}"


@pytest.mark.parametrize("path", ["qwen2.5-7B-rlvr_megatron", "../qwen2.5-7B-rlvr_megatron", "examples/config", "config", "bin"])
def test_a_folder_that_was_named_is_not_taken_from_elsewhere(path, tmp_path, monkeypatch, capsys):
    """Not from the package's examples, nor from beside the `roll` that runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(ROOT / "roll"), "check"])
    assert main(["--config_path", path, "--config_name", "rlvr_config_async"]) == 1
    told = capsys.readouterr().err
    assert f"error: --config_path = '{path}': there is no such folder in {tmp_path}; fix: " in told, told
    assert ("pkg://qwen2.5-7B-rlvr_megatron is the package's" in told) == (Path(path).name == "qwen2.5-7B-rlvr_megatron")


def test_a_start_script_looks_in_its_own_folder_as_rolls_does(tmp_path, monkeypatch):
    """ROLL's run scripts give it the name of a folder beside it."""
    for folder in ("script/mine", "script/both", "here/both"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("sys.argv", [str(tmp_path / "script" / "start_rlvr_pipeline.py")])
    assert config_folder("mine") == tmp_path / "script" / "mine"
    assert config_folder("both") == tmp_path / "here" / "both"
    monkeypatch.setattr("sys.argv", [str(tmp_path / "script" / "roll")])
    with pytest.raises(ConfigError, match="no such folder"):
        config_folder("mine")


def test_the_report_says_which_file_was_read(tmp_path, capsys, monkeypatch):
    shutil.copytree(ROOT / "examples/config", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    assert main(["--config_path", "."]) == 0
    assert f"  reads {tmp_path}/rlvr_config_async.yaml\n" in capsys.readouterr().out


def test_the_current_folder_comes_first(tmp_path, monkeypatch):
    (tmp_path / "config").mkdir()
    monkeypatch.chdir(tmp_path)
    assert config_folder("config") == tmp_path / "config"
    with pytest.raises(ConfigError, match=r"no such folder.*fix"):
        config_folder("nowhere")


def test_the_real_command(tmp_path):
    """As a user calls it. The figures are those of examples/config/rlvr_config_async.yaml."""
    script = Path(sys.executable).with_name("roll")
    done = subprocess.run([script, "check", "max_steps=10"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.split()[:4] == ["samples", "256", "2,560", "32"] for line in lines)
    assert any("at most 64 groups = 512 rollouts" in line for line in lines)
    assert any("−min(r·A, clip(r, 1−0.2, 1+0.2)·A)" in line for line in lines)
    headings = [line for line in lines if line and not line.startswith(" ")][1:]
    assert headings == [
        "devices",
        "amounts",
        "staleness",
        "log-probs",
        "loss",
        "memory per device",
        "notes",
        "keys",
        "on this machine",
    ]


def test_all_errors_come_at_once_with_place_value_rule_and_fix(tmp_path, capsys):
    text = (ROOT / "examples" / "config" / "rlvr_embedded.yaml").read_text()
    (tmp_path / "run.yaml").write_text(text.replace("rollout_batch_size: 32", "rollout_batch_size: 31") + "\nmax_stepz: 3\n")
    line = 1 + text.splitlines().index("rollout_batch_size: 32")

    def errors(*overrides):
        assert main(["--config_path", str(tmp_path), "--config_name", "run", *overrides]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        return err.splitlines()

    unknown, count = errors()
    assert "run.yaml:" in unknown and "max_stepz = 3: unknown key; fix: did you mean max_steps?" in unknown
    assert count.startswith("1 problem;")
    devices = ["actor_train.device_mapping=0", "actor_infer.device_mapping='0,99'", "num_gpus_per_node=2"]
    found = errors("~max_stepz", *devices)
    assert len(found) == 3 and found[-1].startswith("2 problems;")
    batch = next(each for each in found if "rollout_batch_size" in each)
    assert f"run.yaml:{line}: rollout_batch_size = 31:" in batch
    assert "31 prompts x 8 responses = 248 samples" in batch and "fix: rollout_batch_size 32" in batch
    assert any(each.startswith("error: command line: actor_infer.device_mapping = '0,99': no device 99") for each in found)


def test_errors_as_data(capsys):
    assert main(["--json", "max_steps=0", "actor_train.pg_variant=pop"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    (problem,) = [each for each in told["problems"] if each["key"] == "max_steps"]
    assert (problem["value"], problem["message"], problem["where"]) == (0, "must be >= 1 and <= 1e+09", "command line")


ROLL_FILES = ROOT / "tests" / "configs" / "roll_examples"


def test_a_file_of_rolls_is_planned_on_as_many_machines_as_it_names(capsys):
    arguments = ["--compat", "--json", "--config_path", str(ROLL_FILES / "rlvr"), "--config_name", "async_sglang"]
    assert main(arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["plan"]["device_count"], told["plan"]["nodes"]) == (True, 24, 3)
    assert told["report"]["without_effect"] and told["report"]["aliased"]


def test_a_file_of_rolls_shows_its_loss_with_the_numbers_in_force_and_what_means_something_else(capsys):
    arguments = ["--compat", "--config_path", str(ROLL_FILES / "rlvr"), "--config_name", "grpo_gspo"]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    policy = next(line for line in lines if line.startswith("  L_t"))
    assert "−max(min(s·A, clip(s, 1−0.2, 1+0.2)·A), 1.4·A) where A < 0" in policy
    assert any(line.startswith("  KL_t") and "e^d − 1 − d, clipped to ±10" in line for line in lines)
    section = lines[lines.index("means something else than in ROLL") :]
    assert any("grpo_gspo.yaml:" in line and "generating_args.temperature = 0.99: log-probs" in line for line in section)


def test_what_keeps_a_file_of_rolls_from_starting_is_a_failure_and_what_is_told_is_none(capsys):
    arguments = ["--config_path", str(ROLL_FILES / "rlvr"), "--config_name", "ppo_critic"]
    assert main(["--compat", *arguments]) == 1
    out, err = capsys.readouterr()
    assert "keys read" in out and "without effect" in out
    assert "rl_loss_coef" in err
    assert err.splitlines()[-1].endswith("nothing was started")
    assert main(arguments) == 1


def test_nothing_of_five_reward_domains_is_refused(capsys):
    """Mathematics, code, instructions, multiple choice and a judge on devices, as ROLL's files have them."""
    arguments = ["--compat", "--json", "--config_path", str(ROLL_FILES / "rlvr"), "--config_name", "multi_domain_megatron"]
    assert main(arguments) == 0
    told = json.loads(capsys.readouterr().out)
    kept_out = [*told["report"]["lacking"], *told["problems"]]
    assert [problem for problem in kept_out if problem["key"].startswith("rewards")] == []
    config = load(str(ROLL_FILES / "rlvr"), "multi_domain_megatron", compat=True)[0]
    for domain, reward in config.rewards.items():
        cls = import_object(reward.worker_cls)
        if reward.judge is None:
            cls(asdict(reward))
        else:
            assert (domain, cls.asks, reward.judge.devices) == ("llm_judge", "judge", (12, 13, 14, 15))
            assert reward.timeout_s == 120.0 and reward.judge.generating_args.max_new_tokens == 100


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--config_name", "rlvr_confg"], "rlvr_config"),
        (["--jsn"], "did you mean --json?"),
        (["--device_memory_gib", "-1"], "must be a number > 0"),
        (["--device_memory_gib", "much"], "invalid float"),
        (["--config_path", "nowhere"], "no such folder"),
    ],
)
def test_a_wrong_command_line_is_one_clear_error(arguments, told, capsys):
    assert main(arguments) == 1
    first, _ = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ") and told in first


def role(name, devices, **sizes):
    return RolePlan(name, "back_end", tuple(devices), 1, 1, 1, len(devices), "", ())


def rows(roles, count, nodes=1):
    header, *lines = picture(roles, count, nodes)
    return header.strip(), {line.split()[0]: line.split()[1:] for line in lines}


def test_the_picture_shows_each_device_of_each_role():
    header, lines = rows([role("train", [0, 1, 4]), role("infer", [4, 5])], 6)
    assert header == "012345"
    assert lines["train"][0] == USED * 2 + FREE * 2 + SHARED + FREE
    assert lines["infer"][0] == FREE * 4 + SHARED + USED


def test_nodes_stand_apart():
    header, lines = rows([role("train", range(4))], 4, nodes=2)
    assert header == "01  23"
    assert lines["train"][:2] == [USED * 2, USED * 2]


def test_a_long_row_is_cut_into_spans_of_equal_roles():
    header, lines = rows([role("train", range(64)), role("infer", range(48, 128))], 128)
    assert header.split() == ["0-47", "48-63", "64-127"]
    assert lines["train"][:3] == [USED * 4, SHARED * 5, FREE * 6]
    assert lines["infer"][:3] == [FREE * 4, SHARED * 5, USED * 6]


def config_of(folder, name, *overrides):
    return load(ROOT / "examples" / folder, name, overrides)[0]


def test_memory_is_compared_with_what_is_there(tmp_path):
    shape = {"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
             "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(shape))
    config = config_of("qwen2.5-7B-rlvr_megatron", "rlvr_config_async", f"pretrain={tmp_path}", "num_nodes=3")
    fits = check(config, SERVER)
    assert fits.plan.accelerators and not [line for line in fits.remarks if "GiB a device" in line]
    short = check(config, SERVER, device_memory=24 * GIB)
    assert any(line.startswith("actor_train: about ") and "has 24.0 GiB" in line for line in short.remarks)
    laptop = check(config, LAPTOP)
    assert any("no accelerator" in line for line in laptop.remarks)
    assert not [line for line in laptop.remarks if "GiB a device" in line]


def test_cpu_slots_share_the_memory_of_the_machine(tmp_path):
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 32}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", **shape}))
    config = config_of("config", "rlvr_config_async", f"pretrain={tmp_path}")
    (by_formula,) = check(config, LAPTOP).remarks
    assert "parameters are counted by formula" in by_formula
    told, _ = sorted(check(config, Machine(cpus=2, memory=1 << 20, accelerators=())).remarks, reverse=True)
    assert told.startswith("all roles together")
    crowded = config_of("config", "rlvr_config_async", f"pretrain={tmp_path}", "num_gpus_per_node=2")
    assert any("2 CPU slots share 1 cores" in line for line in check(crowded, Machine(1, 16 * GIB, ())).remarks)


def test_an_engine_that_borrows_no_cores_is_told_how_to_have_more(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    eight = Machine(cpus=8, memory=64 * GIB, accelerators=())

    def told(*overrides: str) -> list[str]:
        config = config_of("config", "rlvr_config_async", *overrides)
        return [line for line in check(config, eight).remarks if "uses no others" in line]

    vllm = "actor_infer.strategy_args.strategy_name=vllm"
    assert told() == []
    (line,) = told(vllm)
    assert line.startswith("actor_infer (vllm) has 1 of 8 cores, and uses no others: num_gpus_per_node=2 divides all cores")
    assert [line.split()[0] for line in told("deterministic=true")] == ["actor_train", "actor_infer"]
    assert told(vllm, "num_gpus_per_node=2") == []
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert told(vllm) == []


@pytest.mark.parametrize(("instructions", "told"), [("", True), ("AMX", False), (None, False)])
def test_bfloat16_without_instructions_for_it_is_remarked_upon(instructions, told):
    config = config_of("config", "rlvr_config_async", "actor_train.model_args.dtype=bf16")
    remarks = check(config, replace(LAPTOP, bf16=instructions)).remarks
    assert any(line.startswith("actor_train.model_args.dtype = bf16: these processors have no") for line in remarks) == told


def test_a_sequence_that_the_model_was_not_made_for_is_remarked_upon(tmp_path):
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 32}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", **shape, "max_position_embeddings": 256}))

    def told(length):
        config = config_of("config", "rlvr_config_async", f"pretrain={tmp_path}", f"response_length={length}", "prompt_length=16")
        return [line for line in check(config, LAPTOP).remarks if "a sequence may have" in line]

    (beyond,) = told(241)
    assert beyond.endswith("a sequence may have 257 tokens, the model was made for 256 (max_position_embeddings)")
    assert told(240) == []


@pytest.mark.parametrize(
    ("said", "longest"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": 32768, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, 32768),
        ({"max_position_embeddings": 32768,
          "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}, 131072),
    ],
)  # fmt: skip
def test_how_far_a_model_attends(said, longest):
    assert beyond_context(said, longest) == "" != beyond_context(said, longest + 1)
    assert beyond_context({"max_position_embeddings": None}, 1 << 40) == "", "it does not say"


@pytest.mark.parametrize(
    ("given", "variable", "cache", "told"),
    [
        ({}, "", (4 * 3 + 1) * 128 * 1024, ""),
        ({"kv_cache_memory_bytes": 1000}, "", 1000, "has no room for a request of sequence_length 300: at least 524,288"),
        ({"kv_cache_memory_bytes": 1000}, "40", 40 * GIB, "the largest part: KV cache of actor_infer, 40.0 GiB"),
        ({"gpu_memory_utilization": 0.5}, "", (4 * 3 + 1) * 128 * 1024, "not read on a CPU"),
    ],
)
def test_the_kv_cache_of_vllm_on_a_cpu_is_planned(tmp_path, monkeypatch, given, variable, cache, told):
    """A token: 2 · 2 layers · 64 · 4 bytes. 300 tokens are 3 blocks of 128, and vLLM keeps one block more."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", variable)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 32}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", **shape}))
    lengths = ["prompt_length=100", "response_length=200", "max_running_requests=4", f"pretrain={tmp_path}"]
    config = config_of("config", "rlvr_config_async", *lengths, "actor_infer.strategy_args.strategy_name=vllm")
    chosen = replace(config.actor_infer.strategy_args, strategy_config=given)
    checked = check(replace(config, actor_infer=replace(config.actor_infer, strategy_args=chosen)), LAPTOP)
    parts = {part.name: part.bytes for role in checked.plan.memory if role.role == "actor_infer" for part in role.resident}
    assert parts["KV cache"] == cache and told in "\n".join(checked.remarks)


def test_a_run_begins_with_the_short_form():
    checked = check(config_of("config", "rlvr_config_async"), LAPTOP)
    lines = list(condensed(checked.plan, checked.remarks))
    assert len(lines) <= 8 and all(len(line) < 160 for line in lines)
    assert "256 samples" in "\n".join(lines) and "at most 1 version" in "\n".join(lines)


def test_bytes_in_words():
    assert [size(n) for n in (0, 1023, 1024, 3 << 20, 5 * GIB // 2)] == ["0 B", "1023 B", "1.0 KiB", "3.0 MiB", "2.5 GiB"]


def test_an_evaluation_plans_its_rollouts_and_no_training(capsys):
    given = ["--config_name", "rlvr_config_async", "mode=bench", "bench_checkpoints=[pretrain,output/run]", "val_batch_size=20"]
    assert main([*given, "validation.generating_args.num_return_sequences=8"]) == 0
    shown = capsys.readouterr().out
    assert "evaluated are pretrain, output/run" in shown and "(val_batch_size 20 × 8)" in shown
    assert not any(line in shown.splitlines() for line in ("staleness", "loss", "log-probs"))
    assert "actor_train" not in shown and "optimiser" not in shown


def test_what_a_run_would_not_find_here_is_remarked_upon(tmp_path, capsys, monkeypatch):
    """Nothing is imported, and the plan is shown all the same: it may be for another machine."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def reward(sample): ...\nraise SystemExit('imported')")
    (tmp_path / "rows").mkdir()
    rows, worker = "actor_train.data_args.file_name", "rewards.arithmetic.worker_cls"

    def told(*overrides):
        assert main(["--config_path", str(ROOT / "examples/config"), "--config_name", "rlvr_config_async", *overrides]) == 0
        lines = capsys.readouterr().out.splitlines()
        begins = "  ! a run on this machine would be refused: "
        return [line.removeprefix(begins) for line in lines if line.startswith(begins)]

    found = told(f"{rows}=rows", f"{worker}=rewards.mine.reward", "output_dir=/proc/x")
    assert f"{rows} = 'rows': is a folder, not a file" in found
    assert f"{worker} = 'rewards.mine.reward': there is no module rewards.mine in {tmp_path}, " in "\n".join(found)
    assert any(line.startswith("output_dir = '/proc/x': /proc cannot be written to") for line in found)
    found = told(f"{rows}=nowhere.jsonl", f"{worker}=mine.reward")
    assert f"{rows} = 'nowhere.jsonl': is not there" in found
    assert not any(line.startswith((worker, "output_dir")) for line in found)
    (line,) = [line for line in told(f"{worker}=mine.rewards") if line.startswith(worker)]
    assert line == f"{worker} = 'mine.rewards': {tmp_path / 'mine.py'} has no rewards; did you mean reward?"
    (tmp_path / "plain" / "inner").mkdir(parents=True)  # folders without __init__.py
    (tmp_path / "mine.py").rename(tmp_path / "plain" / "inner" / "mine.py")
    assert not any(line.startswith(worker) for line in told(f"{worker}=plain.inner.mine.reward"))
    assert any(line.startswith(worker) for line in told(f"{worker}=plain.inner.other.reward"))
    monkeypatch.setattr("roll.strategies.installed_backend.find_spec", lambda name: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    found = told("actor_train.strategy_args={strategy_name: deepspeed_train}", "num_nodes=2")
    assert "num_nodes = 2: needs a Ray cluster, which RAY_ADDRESS=<head>:6379 names" in found[0]
    assert "actor_train.strategy_args.strategy_name = 'deepspeed_train': needs deepspeed, which is not installed" in found[1]


def test_what_makes_no_sense_is_told_among_the_notes(capsys):
    assert main(["--config_name", "rlvr_config_async", "actor_train.training_args.learning_rate=5", "response_length=1"]) == 0
    notes = capsys.readouterr().out.partition("\nnotes\n")[2].partition("\nkeys\n")[0]
    assert "learning_rate = 5.0: is far above" in notes and "response_length = 1: every answer is cut off" in notes

import json
import re

import pytest
import tiny_vision
import yaml
from gateway_world import SYMBOLS, call, make_tokenizer
from tiny_models import symbol_tokenizer, tiny_qwen2

from roll.cli.env import play as main
from roll.core.workers.infer_interface import GenerateResult
from roll.prompts import chat_template
from roll.strategies.infer.hf.strategy import HFInferStrategy


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("play") / "model"
    symbols = ["<pad>", "<eos>", *"LDRU_OPG\n abcdefghijklmnopqrstuvwxyz"]
    tiny_qwen2(len(symbols), num_hidden_layers=1, eos_token_id=1, pad_token_id=0).save_pretrained(folder)
    symbol_tokenizer(symbols).save_pretrained(folder)
    return str(folder)


LAKE = ["--env", "frozen_lake", "action_pattern=(.*)", "action_lookup={L: Left, D: Down, R: Right, U: Up}", "p=1.0"]


def test_an_episode_is_shown_turn_by_turn(model, capsys):
    assert main([*LAKE, "--model", model, "--seed", "3", "--max_steps", "4", "--max_tokens_per_step", "1"]) == 0
    shown = capsys.readouterr().out
    assert all(f"turn {number}" in shown for number in (1, 2, 3, 4)) and "turn 5" not in shown
    assert "truncated" in shown and "return 0 in 4 turns" in shown
    again = main([*LAKE, "--model", model, "--seed", "3", "--max_steps", "4", "--max_tokens_per_step", "1"])
    assert again == 0 and capsys.readouterr().out == shown, "the same seed shows the same episode"


def test_a_model_that_sees_is_shown_what_the_environment_draws(tmp_path, capsys):
    """The frames stay in the folder that is named; a model that reads is told."""
    model = str(tiny_vision.save(tiny_vision.qwen2_5_vl(seed=3), tmp_path / "model"))
    actions = "action_lookup={circle: Left, square: Down, star: Right, line: Up}"
    drawn = ["--env", "frozen_lake", "render_mode=rgb_array", "size=2", "action_pattern=(.*)", actions]
    asked = [*drawn, "agent_system_template=", "agent_template='{observation}what'", "--max_steps", "3"]
    one = ["--max_tokens_per_step", "1"]
    assert main([*asked, *one, "--model", model, "--images", str(tmp_path / "frames"), "--seed", "5"]) == 0
    shown = capsys.readouterr().out
    named = re.findall(r"image ([0-9a-f]{64}\.png)", shown)
    assert "turn 1" in shown and named and all((tmp_path / "frames" / name).is_file() for name in named)
    assert main([*asked, *one, "--model", model, "--seed", "5"]) == 0 and capsys.readouterr().out == shown
    text = [*LAKE[:2], "p=1.0", "agent_system_template=", "agent_template=what", "--max_steps", "1"]
    assert main([*text, *one, "--model", model]) == 0, "and plays what is read"


def test_tools_stand_where_they_stand_in_a_run(tmp_path, capsys, monkeypatch):
    """A model that calls: the tool answers, and the environment is not asked."""
    tokenizer = make_tokenizer()
    tiny_qwen2(len(SYMBOLS), num_hidden_layers=1, eos_token_id=1, pad_token_id=0, max_position_embeddings=4096).save_pretrained(
        tmp_path
    )
    tokenizer.save_pretrained(tmp_path)
    said = call("calculator", expression="6*7")

    async def answered(self, request):
        ids = tokenizer(said, add_special_tokens=False)["input_ids"]
        return GenerateResult(request.request_id, ids, [0.0] * len(ids), [], "stop")

    monkeypatch.setattr(HFInferStrategy, "generate", answered)
    wrapper = "tool_wrapper={call_format: template, tool_configs: [{tool_id: calculator}]}"
    given = ["--max_steps", "2", "--max_tokens_per_step", "200", "--sequence_length", "4000"]
    assert main(["--env", "frozen_lake", wrapper, "--model", str(tmp_path), *given]) == 0
    shown = capsys.readouterr().out
    assert "tool: 42" in shown and "return 0 in 2 turns" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nowhere", "--env", "frozen_lake"], "--model = 'nowhere'"),
        (["--model", "x"], "--env"),
        (["--model", "x", "--run", "nowhere"], "has no config.yaml"),
        (["--model", "x", "--env", "frozen_lake", "slippery"], "write key=value"),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, message):
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert message in told and told.count("\n") == 1


def test_unknown_keys_of_the_environment_are_refused(model, capsys):
    assert main(["--env", "frozen_lake", "--model", model, "sise=4"]) == 2
    assert "did you mean size?" in capsys.readouterr().err


def test_a_model_by_which_nothing_ends_an_answer_is_refused(tmp_path, capsys):
    symbols = ["<pad>", "<eos>", *"LDRU_OPG\n abcdefghijklmnopqrstuvwxyz"]
    tiny_qwen2(len(symbols), num_hidden_layers=1, eos_token_id=None, pad_token_id=0).save_pretrained(tmp_path)
    tokenizer = symbol_tokenizer(symbols)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    asked = [*LAKE, "--model", str(tmp_path), "--max_steps", "1", "--max_tokens_per_step", "1"]
    assert main(asked) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "nothing ends an answer" in line and "fix: eos_token_id: ID in its generation_config.json" in line
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": 1}))
    assert main(asked) == 0


def test_a_run_is_played_with_its_own_stop_strings_and_variables(tmp_path, monkeypatch, model):
    keys = {
        "pretrain": model,
        "max_steps": 1,
        "sequence_length": 512,
        "rollout_batch_size": 4,
        "actor_train": {"data_args": {"template": "none", "chat_template_kwargs": {"shown": "yes"}}},
        "actor_infer": {"generating_args": {"stop_strings": ["D"], "max_new_tokens": 4}},
        "custom_envs": {"Lake": {"env_type": "frozen_lake", "max_steps": 1}},
        "train_env_manager": {"tags": ["Lake"], "group_size": 2},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(keys))
    asked, set_ = [], []

    async def answered(self, request):
        asked.append(request.sampling)
        return GenerateResult(request.request_id, [2], [0.0], [], "stop")

    monkeypatch.setattr(HFInferStrategy, "generate", answered)
    monkeypatch.setattr(chat_template, "set_variables", lambda tokenizer, values: set_.append(values))
    assert main(["--run", str(tmp_path), "--model", model, "--temperature", "0.5"]) == 0
    assert {(each.stop_strings, each.temperature) for each in asked} == {(("D",), 0.5)}
    assert set_ == [{"shown": "yes"}]

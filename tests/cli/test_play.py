import pytest
from gateway_world import SYMBOLS, call, make_tokenizer
from tiny_models import symbol_tokenizer, tiny_qwen2

from roll.cli.env import play as main
from roll.core.workers.infer_interface import GenerateResult
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

"""`roll check` shows the first prompt of each kind of run as its model gets it."""

from __future__ import annotations

import json
import sys

import pytest
from tiny_models import symbol_tokenizer, tiny_qwen2

from roll.cli.check import main

SPECIAL = ["<pad>", "<eos>", "<s>", "<e>"]
CHAT = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}<e>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
WORLDS = '''
import sys
class Letter:
    """Say the letter."""
    def reset(self, seed):
        return "a", {}
    def step(self, text):
        return "a", 1.0, True, False, {"action_is_valid": True, "action_is_effective": True, "success": True}
    def close(self):
        pass
class Chats(Letter):
    instructions = ""
    def reset(self, seed):
        return [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a"}], {}
class Broken(Letter):
    instructions = ""
    def reset(self, seed):
        raise OSError("the disk is away")
class Leaves(Letter):
    instructions = ""
    def reset(self, seed):
        sys.exit(3)
class Closed(Letter):
    instructions = ""
    def __init__(self):
        raise OSError("no such game")
'''
CALCULATOR = "{tool_configs: [{tool_id: calculator}], call_format: text}"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    letters = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ"]  # a space and a line break, as byte-level tokenizers write them
    tokenizer = symbol_tokenizer([*SPECIAL, *letters], "<[a-z]+>|[\\s\\S]", chat_template=CHAT, model_max_length=4096)
    tiny_qwen2(len(tokenizer), max_position_embeddings=4096, eos_token_id=1, pad_token_id=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def checked(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("first_worlds", "mine"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "first_worlds.py").write_text(WORLDS)

    def check(text, *options):
        (tmp_path / "run.yaml").write_text(f"pretrain: {model}\nmax_steps: 2\n{text}")
        code = main(["--config_path", ".", "--config_name", "run", *options])
        told = capsys.readouterr()
        assert code == 0, told.err
        return told.out

    return check


def agentic(envs, template="native"):
    return (
        "rollout_batch_size: 4\nsequence_length: 2000\nmax_tokens_per_step: 8\n"
        "actor_train:\n  device_mapping: [0]\n  training_args: {per_device_train_batch_size: 4}\n"
        f"  data_args: {{template: {template}}}\n"
        f"actor_infer: {{device_mapping: [1]}}\ncustom_envs: {envs}\ntrain_env_manager: {{num_env_groups: 2, group_size: 2}}\n"
    )


def prompts(told):
    return {each["of"].partition(",")[0]: each for each in json.loads(told)["first_prompts"]}


def rlvr(template, rows, **more):
    return (
        "rollout_batch_size: 2\nnum_return_sequences_in_group: 2\nprompt_length: 64\nresponse_length: 8\nadv_estimator: grpo\n"
        "actor_train:\n  device_mapping: [0]\n  training_args: {per_device_train_batch_size: 4}\n"
        f"  data_args: {json.dumps({'file_name': rows, 'template': template, **more})}\n"
        "actor_infer: {device_mapping: [1]}\n"
        "rewards: {add: {worker_cls: roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker}}\n"
    )


@pytest.mark.parametrize(
    ("template", "more", "expected"),
    [
        ("native", {}, "<s>user\n1+1=<e>\n<s>assistant\n"),
        ("native", {"system_prompt": "Add."}, "<s>system\nAdd.<e>\n<s>user\n1+1=<e>\n<s>assistant\n"),
        ("none", {}, "1+1="),
        ("chatml", {}, "<|im_start|>user\n1+1=<|im_end|>\n<|im_start|>assistant\n"),
    ],
)
def test_of_rows_the_first_as_the_template_writes_it(checked, tmp_path, template, more, expected):
    row = {"id": "one", "prompt": "1+1=", "ground_truth": "2", "tag": "add"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (found,) = json.loads(checked(rlvr(template, "rows.jsonl", **more), "--json"))["first_prompts"]
    assert (found["text"], found["of"]) == (expected, "rows.jsonl, one") and found["tokens"]
    assert "first prompt" in checked(rlvr(template, "rows.jsonl", **more))


def test_rows_that_are_not_here_are_told_as_unknown(checked):
    (found,) = json.loads(checked(rlvr("native", "nowhere.jsonl"), "--json"))["first_prompts"]
    assert found["tokens"] is None and "nowhere.jsonl" in found["unknown"]


@pytest.mark.parametrize(
    ("template", "env", "expected"),
    [
        ("native", "{env_type: first_worlds.Letter}", "<s>system\nSay the letter.<e>\n<s>user\na<e>\n<s>assistant\n"),
        ("native", "{env_type: first_worlds.Letter, agent_system_template: ''}", "<s>user\na<e>\n<s>assistant\n"),
        ("none", "{env_type: first_worlds.Letter}", "Say the letter.\na"),
        ("native", "{env_type: first_worlds.Chats}", "<s>system\nbe brief<e>\n<s>user\na<e>\n<s>assistant\n"),
        (
            "none",
            "{env_type: first_worlds.Letter, agent_template: '{observation} {actions_left}', max_steps: 3}",
            "Say the letter.\na 3",
        ),
    ],
)
def test_of_an_environment_what_its_first_episode_begins_with(checked, template, env, expected):
    found = prompts(checked(agentic(f"{{t: {env}}}", template), "--json"))["t"]
    assert (found["text"], found["unknown"]) == (expected, "")


def test_tools_are_among_it(checked):
    text = prompts(checked(agentic(f"{{t: {{env_type: first_worlds.Letter, tool_wrapper: {CALCULATOR}}}}}"), "--json"))["t"][
        "text"
    ]
    assert "Say the letter." in text and "calculator" in text


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ("{env_type: first_worlds.Broken}", "the disk is away"),
        ("{env_type: first_worlds.Closed}", "no such game"),
        ("{env_type: first_worlds.Leaves}", "3"),
        ("{env_type: program, program: {command: [python, a.py], reward: first_worlds.reward}}", "when it runs"),
    ],
)
def test_what_cannot_be_known_is_told_and_no_failure(checked, env, told):
    assert told in prompts(checked(agentic(f"{{t: {env}}}"), "--json"))["t"]["unknown"]


def test_a_long_prompt_is_cut_on_the_screen_alone(checked, tmp_path):
    row = {"id": "one", "prompt": "\n".join("12345" * 20 for _ in range(100)), "ground_truth": "2", "tag": "add"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert "... " in checked(rlvr("none", "rows.jsonl")) and "more characters" in checked(rlvr("none", "rows.jsonl"))
    assert json.loads(checked(rlvr("none", "rows.jsonl"), "--json"))["first_prompts"][0]["text"] == row["prompt"]

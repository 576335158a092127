"""What does not fit among the model folders of a run is told before it starts, and by `roll check`."""

import json
import shutil

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tiny_models import FOR_VLLM, symbol_tokenizer, tiny_classifier, tiny_qwen2

from roll.cli.main import main
from roll.core.configs.arguments import GeneratingArguments
from roll.core.configs.problems import ConfigError
from roll.core.configs.rlvr import RLVRConfig
from roll.core.distributed.devices import Inventory
from roll.plan.rules.loading import load_config
from roll.prepare.rlvr_run import prepare
from roll.strategies.run_models import Models, UsedModel

SYMBOLS = ["<pad>", "<eos>", *"0123456789+=abc"]
PROMPTS = [{"id": str(i), "prompt": f"{i}+1=", "ground_truth": str(i + 1)} for i in range(8)]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<turn>{% endif %}{% endfor %}"
SLOTS = Inventory("cpu", nodes=1, per_node=8, cpus_per_node=8)


def model(folder, symbols=SYMBOLS, *, rows=None, end=1, special=(), **tokenizer):
    changes = {"num_hidden_layers": 1, "max_position_embeddings": 64, "eos_token_id": end, "pad_token_id": 0}
    tiny_qwen2(rows or len(symbols), **changes).save_pretrained(folder)
    made = symbol_tokenizer(symbols, pattern=r"<\w+>|[\s\S]", extra_special_tokens=list(special))
    for name, value in tokenizer.items():
        setattr(made, name, value)
    made.save_pretrained(folder)
    return folder


@pytest.fixture
def told(tmp_path, capsys):
    """A function that says what a start refuses and remarks of a run of the folders here, and makes sure that `roll check` finds
    the same without loading anything."""

    def told(changes=None, rows=PROMPTS):
        (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        mapping = {
            "exp_name": "run",
            "output_dir": str(tmp_path / "output"),
            "pretrain": str(tmp_path / "model"),
            "max_steps": 1,
            "track_with": "none",
            "rollout_batch_size": 2,
            "num_return_sequences_in_group": 2,
            "prompt_length": 16,
            "response_length": 8,
            "actor_train": {
                "device_mapping": "0",
                "training_args": {"per_device_train_batch_size": 4},
                "data_args": {"file_name": str(tmp_path / "prompts.jsonl"), "template": "none", "default_tag": "sums"},
            },
            "actor_infer": {"device_mapping": "1"},
            "rewards": {"sums": {"worker_cls": "roll.graders.rules.ExactMatchRewardWorker", "tag_included": ["sums"]}},
        }
        for path, value in (changes or {}).items():
            *blocks, name = path.split(".")
            inner = mapping
            for block in blocks:
                inner = inner.setdefault(block, {})
            inner[name] = value
        try:
            prepared = prepare(load_config(RLVRConfig, mapping), SLOTS)
            found, remarks = [], [*prepared.warnings, *prepared.remarks]
        except ConfigError as error:
            found, remarks = [str(problem) for problem in error.problems], []
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(mapping | {"num_gpus_per_node": 8}))
        code = main(["check", "--config_path", str(tmp_path), "--config_name", "run"])
        shown = capsys.readouterr()
        return found, remarks, code, shown.out + shown.err

    return told


def lines(remarks, word):
    return [line for line in remarks if word in line]


def test_a_folder_that_says_one_thing_is_not_remarked_upon(tmp_path, told):
    model(tmp_path / "model")
    found, remarks, code, shown = told()
    assert (found, code) == ([], 0)
    assert not lines(remarks, "token") and "an answer ends" not in shown


def test_sources_that_differ_in_what_ends_an_answer_are_told(tmp_path, told):
    model(tmp_path / "model", [*SYMBOLS, "<turn>"], end=[1, 17], special=["<turn>"])
    found, remarks, code, shown = told()
    assert (found, code) == ([], 0)
    (line,) = lines(remarks, "an answer ends at")
    assert "'<eos>' (1) (tokenizer and generation_config.json and config.json), '<turn>' (17) (generation" in line
    assert "an answer ends at '<eos>' (1)" in shown


def test_an_end_token_that_the_tokenizer_takes_for_text_and_one_that_is_not_there_are_told(tmp_path, told):
    model(tmp_path / "model", end=[1, 14, 900])
    _, remarks, _, _ = told()
    assert lines(remarks, "an answer ends at 'a' (14)") and lines(remarks, "token 900, which its model does not know")


def test_a_folder_by_which_nothing_ends_an_answer_is_refused_unless_a_key_says_what_does(tmp_path, told):
    model(tmp_path / "model", end=None, eos_token=None)
    (line,), _, code, shown = told()
    assert line.startswith("actor_infer.generating_args.eos_token_id = None: nothing ends an answer") and code == 1
    assert "nothing ends an answer" in shown
    key = "actor_infer.generating_args"
    for changes in ({f"{key}.stop_strings": ["="]}, {f"{key}.eos_token_id": 3}, {f"{key}.eos_token_id": []}):
        found, _, code, _ = told(changes)
        assert (found, code) == ([], 0)


def test_a_named_end_token_that_the_model_does_not_know_is_refused(tmp_path, told):
    model(tmp_path / "model")
    (line,), _, code, shown = told({"actor_infer.generating_args.eos_token_id": [1, 17]})
    assert "actor_infer.generating_args.eos_token_id = [1, 17]" in line and "has no token 17" in line
    assert code == 1 and "has no token 17" in shown


def test_the_end_of_the_templates_turn_that_ends_no_answer_is_told(tmp_path, told):
    symbols = [*SYMBOLS, "<turn>"]
    model(tmp_path / "model", symbols, special=["<turn>"], chat_template=TEMPLATE)
    _, remarks, _, _ = told({"actor_train.data_args.template": "native"})
    (line,) = lines(remarks, "its chat template ends an answer with '<turn>' (17)")
    assert "eos_token_id: [1, 0, 17]" in line
    model(tmp_path / "model", symbols, end=[1, 17], special=["<turn>"], chat_template=TEMPLATE)
    _, remarks, _, _ = told({"actor_train.data_args.template": "native"})
    assert not lines(remarks, "its chat template ends")


@pytest.mark.parametrize("role", ["reference", "critic"])
@pytest.mark.parametrize(
    ("symbols", "rows", "said"),
    [
        (["<pad>", "<eos>", *"9876543210+=abc"], None, "10 tokens of 17 are another text to it: 2 is '0' there, '9' here"),
        (SYMBOLS[:12], None, "its embeddings have 12 tokens"),
        (SYMBOLS, 12, "its embeddings have 12 tokens"),
    ],
)
def test_a_role_that_reads_the_policys_tokens_otherwise_or_does_not_know_them_is_refused(
    tmp_path, told, role, symbols, rows, said
):
    model(tmp_path / "model")
    model(tmp_path / "other", symbols, rows=rows)
    changes = {f"{role}.model_args.model_name_or_path": str(tmp_path / "other"), f"{role}.device_mapping": "2"}
    changes |= {"use_kl_loss": True, "kl_loss_coef": 0.01} if role == "reference" else {"adv_estimator": "gae"}
    if role == "critic":
        changes["critic.training_args.per_device_train_batch_size"] = 4
    found, _, code, shown = told(changes)
    (line,) = lines(found, f"{role}.model_args.model_name_or_path")
    assert said in line and code == 1 and said in shown


def test_a_role_with_more_or_fewer_rows_beyond_the_tokenizer_may_take_part(tmp_path, told):
    model(tmp_path / "model", rows=32)
    changes = {"reference.model_args.model_name_or_path": str(tmp_path / "other"), "use_kl_loss": True, "kl_loss_coef": 0.01}
    changes |= {"reference.device_mapping": "2"}
    model(tmp_path / "other", rows=64)
    found, remarks, code, _ = told(changes)
    assert (found, code) == ([], 0) and not lines(remarks, "its embeddings have")
    model(tmp_path / "other", rows=24)
    found, remarks, code, _ = told(changes)
    assert (found, code) == ([], 0) and lines(remarks, "its embeddings have 24 tokens")


def test_a_row_with_a_token_that_the_model_does_not_have_is_refused_by_file_and_line(tmp_path, told, capsys):
    model(tmp_path / "model", [*SYMBOLS, "<new>"], rows=len(SYMBOLS), special=["<new>"])
    found, remarks, code, shown = told()
    assert (found, code) == ([], 0) and lines(remarks, "1 token that its model does not know")
    assert "does not know" in shown
    rows = [*PROMPTS[:2], {**PROMPTS[2], "prompt": "<new>1+1="}]
    (line,), *_ = told(rows=rows)
    assert "prompts.jsonl': line 3: the prompt has the token '<new>' (17), and the models know 17 tokens" in line
    assert main(["check", "--config_path", str(tmp_path), "--config_name", "run", "--data"]) == 1
    assert "prompts.jsonl:3: the prompt has the token '<new>' (17)" in capsys.readouterr().err


def test_an_engine_with_another_model_than_the_trainers_is_refused(tmp_path, told):
    model(tmp_path / "model")
    shutil.copytree(tmp_path / "model", tmp_path / "other")
    tiny_qwen2(len(SYMBOLS), num_hidden_layers=1, hidden_size=32, eos_token_id=1, pad_token_id=0).save_pretrained(
        tmp_path / "other"
    )
    (line,), _, code, _ = told({"actor_infer.model_args.model_name_or_path": str(tmp_path / "other")})
    assert "these models differ" in line and "actor_infer.model_args.model_name_or_path" in line and code == 1


@pytest.mark.parametrize("same", [True, False])
def test_a_head_that_config_ties_and_the_files_do_not_is_refused(tmp_path, told, same):
    """transformers would take the one, vLLM the other."""
    file = model(tmp_path / "model") / "model.safetensors"
    tensors = load_file(file)
    body = tensors["model.embed_tokens.weight"]
    save_file(tensors | {"lm_head.weight": body.clone() if same else body + 1}, file, {"format": "pt"})
    found, _, code, shown = told()
    assert bool(lines(found, "ties the head to the embeddings, but lm_head.weight is another")) is not same
    assert code == (0 if same else 1) and ("ties the head" in shown) is not same


def test_weights_that_mean_nothing_without_scales_are_refused(tmp_path, told):
    file = model(tmp_path / "model") / "model.safetensors"
    tensors = {name: tensor.to(torch.float8_e4m3fn) for name, tensor in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    found, _, code, _ = told()
    assert lines(found, "its weights are stored as F8_E4M3") and code == 1


def test_a_judges_folder_is_looked_at_by_itself(tmp_path, told):
    """Its tokenizer may be another one, and what ends its replies is its own folder's to say."""
    model(tmp_path / "model")
    model(tmp_path / "judge", ["<pad>", "<eos>", *"xyz", "<turn>"], end=[1, 5], special=["<turn>"])
    judge = {"model_name_or_path": str(tmp_path / "judge"), "device_mapping": "3", "max_length": 4096}
    changes = {"rewards.sums.worker_cls": "roll.graders.by_model.LLMJudgeRewardWorker", "rewards.sums.judge": judge}
    found, remarks, code, _ = told(changes)
    assert (found, code) == ([], 0)
    assert lines(lines(remarks, "rewards.sums.judge"), "an answer ends at '<eos>' (1) (tokenizer and")
    assert lines(lines(remarks, "rewards.sums.judge"), "a sequence may have 4,096 tokens")
    found, _, code, _ = told(changes | {"rewards.sums.judge": {**judge, "generating_args": {"eos_token_id": 6}}})
    assert lines(found, "rewards.sums.judge.generating_args.eos_token_id") and code == 1


def test_a_reward_models_folder_is_opened_as_a_classifier(tmp_path, told):
    model(tmp_path / "model")
    tiny_classifier(17, pad_token_id=1, eos_token_id=1, **FOR_VLLM).save_pretrained(tmp_path / "judge")
    symbol_tokenizer(SYMBOLS).save_pretrained(tmp_path / "judge")
    judge = {"model_name_or_path": str(tmp_path / "judge"), "device_mapping": "3"}
    changes = {"rewards.sums.worker_cls": "roll.graders.by_model.RewardModelWorker", "rewards.sums.reward_model": judge}
    (line,), *_ = told(changes)
    assert "rewards.sums.reward_model.model_name_or_path" in line and "has no chat template" in line


@pytest.mark.parametrize("content", ["eyJhIjogMX0=", "{", "[1]"])
def test_a_file_of_the_folder_that_is_no_json_is_told_once(tmp_path, told, content):
    model(tmp_path / "model")
    (tmp_path / "model" / "generation_config.json").write_text(content)
    (line,), _, _, shown = told()
    assert "generation_config.json cannot be read" in line
    assert "a run on this machine would be refused" in shown and "generation_config.json cannot be read" in shown


def test_the_end_tokens_that_an_engine_adds_by_the_folder_are_named_as_the_key_takes_them(tmp_path):
    folder = str(model(tmp_path / "model", [*SYMBOLS, "<turn>"], end=[1, 17], special=["<turn>"]))

    def problems(ends):
        asked = {"actor_infer.generating_args": GeneratingArguments(eos_token_id=ends)}
        used = UsedModel("actor_infer", "pretrain", folder, 24, True, asked, "sglang", False)
        return Models([used]).check().problems

    (problem,) = problems([14])
    assert problem.fix == "[14, 1, 17, 0], or strategy_name: vllm"
    assert problems(json.loads(problem.fix.partition(", or")[0])) == []

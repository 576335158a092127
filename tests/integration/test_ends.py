"""Where answers end in whole runs: at every token that the model's folder names, or that a key names; and where they begin."""

import json

import pytest
from tiny_models import symbol_tokenizer

CHAT = "{% for m in messages %}{{ m.content }}=\n{% endfor %}"


@pytest.fixture
def two_ends(material, tmp_path):
    """The tests' model, whose generation_config.json names another end of text besides: "5"."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in (material / "model").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    generation = json.loads((folder / "generation_config.json").read_text())
    five = symbol_tokenizer([*"ab"]).__class__.from_pretrained(folder).convert_tokens_to_ids("5")
    (folder / "generation_config.json").write_text(json.dumps(generation | {"eos_token_id": [1, five]}))
    return folder, five


@pytest.mark.parametrize("named", [None, [7], []])
def test_answers_end_at_every_end_token_and_train_it(lab, make_config, two_ends, named):
    folder, five = two_ends
    changes = {"actor_infer.generating_args.eos_token_id": named, "pretrain": str(folder)}
    run = lab.run(make_config(changes, max_steps=2))
    ends = {0, 1, five} if named is None else set(named)
    samples = run.trained_samples()
    seen = {token for sample in samples for token in sample["response_ids"][-1:]} & ends
    assert bool(seen) is bool(ends), "some answers end by themselves"
    for sample in samples:
        ids, stopped = sample["response_ids"], sample["finish_reason"] == "stop"
        assert not ends & set(ids[:-1]) and stopped is (ids[-1] in ends) and (stopped or len(ids) == 8)
        assert len(sample["behaviour_logprobs"]) == len(ids), (
            "the token that ends an answer is sampled and trained like the others"
        )
        assert named is not None or "5" not in sample["response"], "and is no part of its text"


def test_an_answer_that_a_row_has_begun_is_gone_on_from_and_judged_as_one(lab, make_config, material, tmp_path):
    rows = [
        {"id": str(i), "tag": "odd", "ground_truth": "a", "messages": [{"role": "user", "content": f"{i}"}, begun]}
        for i, begun in enumerate([{"role": "assistant", "content": "1+"}, {"role": "assistant", "content": "2"}] * 4)
    ]
    (tmp_path / "begun.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = tmp_path / "model"
    folder.mkdir()
    for file in (material / "model").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "chat_template.jinja").write_text(CHAT)
    data = {"file_name": str(tmp_path / "begun.jsonl"), "template": "native", "continue_final_message": True}
    changes = {"actor_train.data_args": data, "pretrain": str(folder), "rewards.sums.tag_included": ["odd"]}
    run = lab.run(make_config(changes, max_steps=1))
    samples = run.trained_samples()
    assert samples
    for sample in samples:
        begun = "1+" if int(sample["prompt_uid"].rsplit("/", 1)[-1]) % 2 == 0 else "2"
        assert sample["prompt"].endswith(f"=\n{begun}") and sample["response"].startswith(begun)

"""A reward model: a tiny classifier, on transformers and on vLLM, against its own forward pass without padding."""

import asyncio
import re
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import FOR_VLLM, symbol_tokenizer, tiny_classifier, tiny_qwen2

from roll.core.configs.worker import RewardConfig, RewardModelConfig
from roll.core.data.sample import Prompt, Sample
from roll.core.rewards.worker import RewardResult
from roll.graders.by_model import RewardModelWorker
from roll.graders.references import try_reward, unasked
from roll.strategies.infer.hf.scorer import next_batch
from roll.strategies.model_folder import open_classifier

pytestmark = pytest.mark.slow

TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}<eos>{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)
SYMBOLS = ["<pad>", "<eos>", *"ua:0123456789+="]
PATH = "roll.pipeline.rlvr.rewards.reward_model_worker.RewardModelWorker"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reward_model")
    tokenizer = symbol_tokenizer(SYMBOLS, pattern=r"[\s\S]")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    model = tiny_classifier(64, pad_token_id=1, eos_token_id=1, **FOR_VLLM)
    torch.nn.init.normal_(model.score.weight, std=2.0)
    model.save_pretrained(path)
    return path


def alone(folder: Path, text: str) -> float:
    """What the classifier says of a text by itself: nothing is padded."""
    ids, rest = [], text
    while rest:
        symbol = next(each for each in SYMBOLS if rest.startswith(each))
        ids.append(SYMBOLS.index(symbol))
        rest = rest[len(symbol) :]
    model = tiny_classifier(64, pad_token_id=1, eos_token_id=1, **FOR_VLLM).from_pretrained(folder)
    with torch.inference_mode():
        return float(model.score(model.model(torch.tensor([ids])).last_hidden_state[0, -1]))


def config(folder: Path, engine: str, max_tokens: int = 64, max_length: int = 64) -> dict[str, Any]:
    options = {
        "model_path": str(folder), "max_tokens": max_tokens, "max_length": max_length, "max_running_requests": 4,
        "dtype": "float32", "threads": 1, "seed": 0,
    }  # fmt: skip
    own = {"device": "cpu", "attn_implementation": "sdpa"} if engine == "hf_infer" else {"devices": ("cpu",), "engine_args": {}}
    return {
        "timeout_s": 60.0,
        "max_concurrency": 8,
        "engine": {"name": engine, "options": options | own},
        "reward_model": {"max_length": max_length},
    }


def sample(response: str) -> Sample:
    messages = [{"role": "user", "content": "1+1="}]
    return Sample(Prompt("a/0/1", [1], "", "a", "a", "", {}, messages), 0, [2], [0.0], [], "stop", response_text=response)


def graded(config: dict[str, Any], *responses: str) -> list[RewardResult]:
    async def main() -> list[RewardResult]:
        worker = RewardModelWorker(config)
        await worker.start()
        try:
            return await worker.compute_rewards([sample(each) for each in responses])
        finally:
            await worker.close()

    return asyncio.run(main())


RESPONSES = ("2", "3", "0123456789" * 3, "", "=2")


@pytest.mark.timeout(300)
@pytest.mark.xdist_group("vllm")
@pytest.mark.parametrize("engine", ["hf_infer", "vllm", "vllm of another interpreter"])
def test_a_reward_is_what_the_classifier_says_of_the_conversation(
    folder: Path, request: pytest.FixtureRequest, engine: str
) -> None:
    """Also in a batch with longer texts, of which each ends with the token that the model's config calls padding."""
    name, *elsewhere = engine.split(maxsplit=1)
    if name == "vllm":
        pytest.importorskip("vllm", reason="needs requirements/vllm.txt")
        request.getfixturevalue("forked_engines")
    given = config(folder, name)
    if elsewhere:
        given["engine"]["options"]["engine_args"] = {"python": sys.executable}
    results = graded(given, *RESPONSES)
    expected = [alone(folder, f"u:1+1=<eos>a:{response}<eos>") for response in RESPONSES]
    assert [result.error for result in results] == [None] * len(RESPONSES)
    assert [result.value for result in results] == pytest.approx(expected, abs=1e-4)
    assert len({round(value, 3) for value in expected}) == len(RESPONSES), "the test can tell the responses apart"


def test_only_what_follows_the_thinking_is_read(folder: Path) -> None:
    thought, plain = graded(config(folder, "hf_infer"), "<think>9</think>2", "2")
    assert thought.value == pytest.approx(plain.value, abs=1e-5)


def test_a_response_cannot_end_its_turn(folder: Path) -> None:
    """Its "<eos>" is text, which this tokenizer has no symbols for, and not the token that ends a turn."""
    (result,) = graded(config(folder, "hf_infer"), "2<eos>3")
    expected, forged = (alone(folder, f"u:1+1=<eos>a:{response}<eos>") for response in ("23", "2<eos>3"))
    assert result.value == pytest.approx(expected, abs=1e-4) and abs(expected - forged) > 0.1


def test_a_text_that_is_too_long_has_no_reward(folder: Path) -> None:
    short, long = graded(config(folder, "hf_infer", max_length=20), "2", "2" * 20)
    assert short.value is not None
    assert long.error == "ValueError: the conversation has 30 tokens, more than max_length 20"


@pytest.mark.parametrize(
    ("lengths", "most", "batches"),
    [
        ([3, 3, 3], 9, [3]),
        ([3, 3, 4], 9, [2, 1]),
        ([20, 1, 1], 9, [1, 2]),
        ([1, 20], 9, [1, 1]),
    ],
)
def test_batches_are_cut_by_tokens_with_padding(lengths: list[int], most: int, batches: list[int]) -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        waiting = deque(([0] * length, loop.create_future()) for length in lengths)
        return [len(batch) for batch in iter(lambda: next_batch(waiting, most), [])]

    assert asyncio.run(main()) == batches


def _causal(path: Path) -> None:
    tiny_qwen2(64).save_pretrained(path)


def _two_outputs(path: Path) -> None:
    model = tiny_classifier(64)
    model.config.num_labels = 2
    type(model)(model.config).save_pretrained(path)


def _no_template(path: Path) -> None:
    tiny_classifier(64).save_pretrained(path)
    symbol_tokenizer(SYMBOLS).save_pretrained(path)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (_causal, "is no sequence classifier: .* has architectures ['Qwen2ForCausalLM']"),
        (_two_outputs, "has 2 outputs; a reward is one"),
        (_no_template, "has no chat template: a reward model reads a conversation"),
    ],
)
def test_other_folders_are_refused(tmp_path: Path, make: Callable[[Path], None], complaint: str) -> None:
    tokenizer = symbol_tokenizer(SYMBOLS)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path)
    make(tmp_path)
    with pytest.raises(ValueError, match=complaint.replace("[", r"\[").replace("]", r"\]")):
        if make is _no_template:
            (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
        open_classifier(str(tmp_path))


def test_a_classifier_without_its_head_is_refused(tmp_path: Path, folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    from roll.strategies.model_folder import load_classifier

    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    del weights["score.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=re.escape("not complete: score.weight is missing")):
        load_classifier(tmp_path, torch.float32, "sdpa")


def test_a_worker_and_its_block_belong_together() -> None:
    model = RewardModelConfig(model_name_or_path="nowhere", device_mapping="0")
    prompt = sample("").prompt
    try_reward(RewardConfig(worker_cls=PATH, reward_model=model), [prompt])
    with pytest.raises(ValueError, match="its domain has no reward_model"):
        try_reward(RewardConfig(worker_cls=PATH), [prompt])
    rule = RewardConfig(worker_cls="roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker")
    (problem,) = unasked("d", replace(rule, reward_model=model))
    assert "MathRuleRewardWorker asks no reward_model" in problem.message

"""`hf_infer` on images: it says what the trainer says, and never takes one image for another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_vision
import torch
from tiny_vision import IDS, drawn
from vision_batches import PICTURES, prompts, sight_of, trained

from roll.core.workers.infer_interface import GenerateRequest, GenerateResult, SamplingParams
from roll.strategies import model_folder
from roll.strategies.infer.hf.slot_engine import SlotEngine
from roll.strategies.vision.sight import Sight

FAMILIES = [*tiny_vision.MODELS]


def engine_of(folder: Path, images: Path, slots: int = 3, **options: Any) -> SlotEngine:
    model = model_folder.load_model(folder, torch.float32, "sdpa")
    sight = Sight.of(model, folder, str(images))
    return SlotEngine(model, None, max_running_requests=slots, max_length=128, seed=7, sight=sight, **options)


def answers(engine: SlotEngine, asked: dict[str, list[int]], **params: Any) -> dict[str, GenerateResult]:
    for name, prompt in asked.items():
        engine.submit(GenerateRequest(name, tuple(prompt), SamplingParams(**{"max_new_tokens": 9, **params})))
    found: dict[str, GenerateResult] = {}
    while not engine.idle:
        found |= {result.request_id: result for result in engine.step()}
    return found


def assert_agree(folder: Path, images: Path, asked: dict[str, list[int]], found: dict[str, GenerateResult]) -> None:
    for name, wanted in trained(folder, images, asked, found).items():
        torch.testing.assert_close(torch.tensor(found[name].logprobs), wanted, atol=1e-4, rtol=0, msg=name)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_engine_and_trainer_agree(family: str, deterministic: bool, folders: dict[str, Path], images: Path) -> None:
    """Eleven requests in three slots: prefixes are shared, copied and swapped."""
    folder = folders[family]
    several = prompts(folder, images)
    asked = {f"{i}/{n}": prompt for i, prompt in enumerate(several) for n in range(3)}
    engine = engine_of(folder, images, deterministic=deterministic)
    found = answers(engine, asked)
    assert_agree(folder, images, asked, found)
    assert engine.stats().prefill_tokens < sum(map(len, asked.values()))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_second_turn_begins_with_what_is_cached_of_the_first(family: str, folders: dict[str, Path], images: Path) -> None:
    folder = folders[family]
    first, other, *_ = prompts(folder, images)
    engine = engine_of(folder, images)
    said = answers(engine, {"a": first})["a"]
    before = engine.stats().prefill_tokens
    *_, c = tiny_vision.stored(images, *PICTURES)
    view = sight_of(folder, images)._views.of(c)
    frame = [IDS["<start>"], *(c if token < 0 else token for token in view.tokens), IDS["<end>"], IDS["bot"]]
    asked = {"next": [*first, *said.token_ids, *frame], "text": [*first, *said.token_ids, IDS["where"]], "other": other}
    found = answers(engine, asked)
    assert engine.stats().prefill_tokens - before < sum(map(len, asked.values())) - len(first)
    assert_agree(folder, images, asked, found)


@pytest.mark.parametrize("family", FAMILIES)
def test_two_images_of_one_size_are_never_taken_for_each_other(family: str, folders: dict[str, Path], images: Path) -> None:
    """Placeholders alone would be equal. One after the other, together, and as the beginning that a slot keeps."""
    folder = folders[family]
    one, other = tiny_vision.stored(images, drawn("circle", (32, 32)), drawn("square", (32, 32), "green"))
    count = sight_of(folder, images)._views.of(one).features
    ask = {
        name: [IDS["user"], IDS["<start>"], *[number] * count, IDS["<end>"], IDS["what"], IDS["bot"]]
        for name, number in (("one", one), ("other", other))
    }
    engine = engine_of(folder, images)
    alone = {name: answers(engine_of(folder, images), {name: prompt}, seed=5)[name] for name, prompt in ask.items()}
    assert alone["one"].logprobs != alone["other"].logprobs
    together = answers(engine, ask, seed=5)
    in_turn = {name: answers(engine, {name: prompt}, seed=5)[name] for name, prompt in ask.items()}
    for found in (together, in_turn):
        for name, result in found.items():
            torch.testing.assert_close(torch.tensor(result.logprobs), torch.tensor(alone[name].logprobs), atol=1e-5, rtol=0)
    assert_agree(folder, images, ask, together)


def test_an_image_in_place_of_a_token_is_refused_where_none_is_seen(folders: dict[str, Path], images: Path) -> None:
    engine = engine_of(folders["qwen2.5-vl"], images)
    (number, *_), params = tiny_vision.stored(images, *PICTURES), SamplingParams()
    with pytest.raises(ValueError, match="token ids must lie in"):
        engine.submit(GenerateRequest("a", (3, 4), params, (number,)))
    model = model_folder.load_model(folders["qwen2.5-vl"], torch.float32, "sdpa")
    text = SlotEngine(model, None, max_running_requests=1, max_length=64, seed=7)
    with pytest.raises(ValueError, match="token ids must lie in"):
        text.submit(GenerateRequest("a", (number,), params))

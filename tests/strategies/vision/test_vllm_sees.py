"""vLLM on images, one real engine for each family: its log-probs are the trainer's, before and after an update of all weights."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import tiny_vision
import torch
from vision_batches import PICTURES, prompts, trained

from roll.core.weights.bucket import manifest_of
from roll.core.workers.infer_engines import make_infer_strategy
from roll.core.workers.infer_interface import GenerateRequest, GenerateResult, SamplingParams
from roll.strategies import model_folder
from roll.strategies.vision.sight import showings
from roll.transports.buckets import make_buckets

pytest.importorskip("vllm", reason="needs requirements/vllm.txt")

EXACT = 1e-4
PARTIAL = (tiny_vision.IDS["star"], tiny_vision.IDS["line"])
"""What a request had when it was aborted, which another call goes on with."""


def test_each_showing_of_an_image_has_its_places() -> None:
    features = {-5: 2, -9: 1}
    found = list(showings([1, -5, -5, 7, -5, 8, -5, -9, -9], features.__getitem__))
    assert found == [(-5, [1, 2]), (-5, [4, 6]), (-9, [7]), (-9, [8])]


class Seeing:
    """An engine of the family on a loop of its own, and the folders of the weights it was given."""

    def __init__(self, family: str, tmp_path: Path) -> None:
        self.folders = [tiny_vision.save(tiny_vision.for_vllm(family, s), tmp_path / str(s), 2.0) for s in range(2)]
        self.images = tmp_path / "images"
        tiny_vision.stored(self.images, *PICTURES)
        self.asked = {f"{i}/{n}": prompt for i, prompt in enumerate(prompts(self.folders[0], self.images)) for n in range(8)}
        options: dict[str, Any] = {"max_running_requests": 8, "max_length": 192, "threads": 1, "seed": 7}
        self.engine: Any = make_infer_strategy("vllm", options | {"model_path": str(self.folders[0]), "images": str(self.images)})

    async def answers(self, partial: tuple[int, ...] = (), **params: Any) -> dict[str, GenerateResult]:
        sampling = SamplingParams(**{"max_new_tokens": 9, **params})
        calls = [self.engine.generate(GenerateRequest(name, tuple(p), sampling, partial)) for name, p in self.asked.items()]
        return dict(zip(self.asked, await asyncio.gather(*calls), strict=True))

    async def update(self, version: int, mode: Any) -> None:
        """To the weights of that version's folder, of which there are two."""
        model = model_folder.load_model(self.folders[version % 2], torch.float32, "sdpa")
        buckets = list(make_buckets(model.named_parameters(), 20_000))
        for bucket in buckets:
            await self.engine.receive_bucket(version, bucket)
        await self.engine.activate_weights(manifest_of(version, buckets), mode)

    async def over(self, version: int, mode: Any) -> dict[str, GenerateResult]:
        """Answers that run while an update comes."""
        before = (await self.engine.stats()).generated_tokens
        running = asyncio.create_task(self.answers(max_new_tokens=120))
        while (await self.engine.stats()).generated_tokens < before + 100:
            await asyncio.sleep(0)
        await self.update(version, mode)
        return await running

    def error(
        self, found: dict[str, GenerateResult], version: int, partial: tuple[int, ...] = (), weights: int | None = None
    ) -> float:
        """The largest difference of the tokens of that version to what the trainer says of them with its weights, or others."""
        folder = self.folders[version % 2 if weights is None else weights]
        asked = {name: [*prompt, *partial] for name, prompt in self.asked.items()}
        worst = 0.0
        for name, wanted in trained(folder, self.images, asked, found).items():
            differences = (torch.tensor(found[name].logprobs) - wanted).abs()
            spans = [differences[s.start : s.stop] for s in found[name].versions if s.version == version]
            worst = max([worst, *(float(span.max()) for span in spans)])
        return worst


async def _updated(seeing: Seeing) -> dict[str, dict[str, GenerateResult]]:
    try:
        before = await seeing.answers()
        over = await seeing.over(1, "interrupt")
        after = await seeing.answers(PARTIAL)
        flying = await seeing.over(2, "in_flight")
        landed = await seeing.answers()
        return {"before": before, "over": over, "after": after, "flying": flying, "landed": landed}
    finally:
        await seeing.engine.close()


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("vllm")
@pytest.mark.parametrize("family", ["qwen2.5-vl", "smolvlm"])
def test_engine_and_trainer_agree_before_over_and_after_an_update(family: str, tmp_path: Path) -> None:
    """Groups of eight that show several images, or none. Of other weights, or another image, a token is off by 0.01 or more.
    In flight, what runs keeps the images that it has seen, and nothing of them is left for what begins behind the update."""
    seeing = Seeing(family, tmp_path)
    found = asyncio.run(_updated(seeing))
    assert seeing.error(found["before"], 0) < EXACT
    assert seeing.error(found["before"], 0, weights=1) > 100 * EXACT
    assert any(len(result.versions) > 1 for result in found["over"].values()), "the update came while responses ran"
    assert max(seeing.error(found["over"], version) for version in (0, 1)) < EXACT
    assert {span.version for result in found["after"].values() for span in result.versions} == {1}
    assert seeing.error(found["after"], 1, PARTIAL) < EXACT
    versions = [span.version for result in found["flying"].values() for span in result.versions]
    assert set(versions) == {1, 2} and seeing.error(found["flying"], 1) < EXACT < seeing.error(found["flying"], 2)
    assert {span.version for result in found["landed"].values() for span in result.versions} == {2}
    assert seeing.error(found["landed"], 2) < EXACT

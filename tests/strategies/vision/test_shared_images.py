"""Images that samples share are computed once, forward and backward: the same log-probs and gradients as one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_vision
import torch
from programs import Programs
from safetensors.torch import load_file
from saving import save, saved
from tiny_vision import IDS, drawn
from torch import Tensor
from vision_batches import (
    ALONE,
    LOSS,
    PICTURES,
    TOGETHER,
    batch_of,
    critic_of,
    distance,
    of,
    prompts,
    sight_of,
    strategy_of,
)

from roll.core.algorithms.loss import prepare_batch
from roll.core.algorithms.value_loss import ValueLossSpec
from roll.core.data.token_batch import TokenBatch
from roll.core.workers.train_interface import BatchTotals
from roll.platform.ports import free_port
from roll.strategies import model_folder

FAMILIES = [*tiny_vision.MODELS]


def gradients(strategy: Any, batch: TokenBatch) -> dict[str, Tensor]:
    """Of one step, in float64, by parameter; the weights stay."""
    kept: dict[str, Tensor] = {}
    strategy._model.double()

    def keep() -> float:
        kept.update(of(strategy))
        strategy._optimizer.zero_grad()
        return 1.0

    strategy._step = keep
    strategy.train_step(prepare_batch(batch, LOSS), LOSS, BatchTotals(int(batch.loss_mask.sum()), len(batch)))
    return kept


@pytest.mark.parametrize("family", FAMILIES)
def test_shared_and_alone_give_the_same_log_probs_and_gradient(family: str, folders: dict[str, Path], images: Path) -> None:
    folder = folders[family]
    batch = batch_of(folder, images)
    together, alone = (strategy_of(folder, images, **options) for options in (TOGETHER, ALONE))
    assert together._scorer._forest
    torch.testing.assert_close(together.log_probs(batch), alone.log_probs(batch), atol=1e-5, rtol=0)
    one, other = gradients(together, batch), gradients(alone, batch)
    assert distance(one, other) <= 1e-6
    tower = {name: tensor for name, tensor in other.items() if ".visual." in name or ".vision_model." in name}
    assert tower and all(float(tensor.abs().max()) > 0 for name, tensor in tower.items() if "bias" not in name)
    padded = gradients(strategy_of(folder, images, attn_implementation="eager", **TOGETHER), batch)
    assert distance(padded, other) <= 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_what_transformers_computes_of_each_sample(family: str, folders: dict[str, Path], images: Path) -> None:
    folder = folders[family]
    batch, sight = batch_of(folder, images), sight_of(folder, images)
    model, found = model_folder.load_model(folder, torch.float32, "sdpa"), strategy_of(folder, images).log_probs(batch)
    begin = 0
    for length, temperature in zip(batch.lengths.tolist(), batch.temperatures, strict=True):
        row = batch.tokens[begin : begin + length]
        seen = [sight._views.of(number) for number in sight._in(row)]
        inputs = sight.family.joined(seen) if seen else {}
        if IDS["<image>"] not in row:  # which transformers takes for an image
            ids = row.masked_fill(row < 0, IDS["<image>"])
            inputs |= {"mm_token_type_ids": (row < 0).int()[None]} if "qwen" in family else {}
            with torch.no_grad():
                logits = model(input_ids=ids[None], **inputs).logits[0, :-1]
            wanted = (logits / temperature).log_softmax(-1).gather(1, ids[1:, None])[:, 0]
            mask = batch.loss_mask[begin : begin + length][1:]
            torch.testing.assert_close(found[begin : begin + length][1:][mask], wanted[mask], atol=2e-5, rtol=0)
        begin += length


@pytest.mark.parametrize("family", ["qwen2.5-vl", "qwen3-vl"])
def test_positions_are_those_of_transformers(family: str, folders: dict[str, Path], images: Path) -> None:
    """Samples that end differently have equal positions in the prompt that they share, and text goes on behind the largest."""
    folder = folders[family]
    sight, (two, *_) = sight_of(folder, images), prompts(folder, images)
    rows = torch.tensor([[*two, 8, 9, 0], [*two, 10, 11, 12]])
    shown = sight.shown(rows, [len(two) + 2, len(two) + 3])
    views = [sight._views.of(number) for number in tiny_vision.stored(images, *PICTURES[:2])]
    grids = torch.cat([view.inputs["image_grid_thw"] for view in views])
    trunk: Any = sight._model.base_model
    wanted, _ = trunk.get_rope_index(shown.tokens, mm_token_type_ids=(rows < 0).int(), image_grid_thw=torch.cat([grids, grids]))
    assert torch.equal(shown.positions[:, 1], wanted[:, 1]) and torch.equal(shown.positions[:, 0, :-1], wanted[:, 0, :-1])
    assert len({tuple(axis.tolist()) for axis in wanted[:, 1]}) == 3, "the axes differ"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tower_runs_once_for_each_image_of_a_micro_batch(family: str, folders: dict[str, Path], images: Path) -> None:
    folder, seen = folders[family], []
    for options in (TOGETHER, ALONE):
        strategy, counts = strategy_of(folder, images, **options), list[int]()

        def count(module: Any, given: Any, named: Any, counts: list[int] = counts) -> None:
            counts.append(len(given[0] if given else named["pixel_values"]))

        strategy._scorer._sight.family.tower(strategy._model)[0].register_forward_pre_hook(count, with_kwargs=True)
        strategy.log_probs(batch_of(folder, images))
        seen.append(counts)
    together, alone = seen
    assert together == [16 + 24 + 16 if "qwen" in family else 3 * 5], (
        "patches, or tiles, of three distinct images in sixteen samples"
    )
    assert len(alone) == 16 and sum(alone) > 4 * sum(together)


def test_a_frozen_tower_is_not_trained(folders: dict[str, Path], images: Path) -> None:
    folder = folders["qwen2.5-vl"]
    batch = batch_of(folder, images)
    whole, frozen = (gradients(strategy_of(folder, images, freeze_vision=f, **TOGETHER), batch) for f in (False, True))
    assert {name for name in whole if ".visual." not in name} == frozen.keys()
    assert distance(frozen, {name: whole[name] for name in frozen}) <= 1e-6


def test_adapters_are_those_of_the_part_that_writes(folders: dict[str, Path], images: Path) -> None:
    strategy = strategy_of(folders["qwen2.5-vl"], images, lora_target="q_proj,down_proj", lora_rank=2, **TOGETHER)
    trained = [name for name, p in strategy._model.named_parameters() if p.requires_grad]
    assert trained and all(name.startswith("model.language_model.") for name in trained)
    assert gradients(strategy, batch_of(folders["qwen2.5-vl"], images)).keys() == set(trained)


@pytest.mark.parametrize("family", ["qwen2.5-vl", "smolvlm"])
def test_a_critic_sees(family: str, folders: dict[str, Path], images: Path, tmp_path: Path) -> None:
    """It learns from images that samples share, and its folder judges each alone by them."""
    folder, batch = folders[family], batch_of(folders[family], images)
    together, alone = (critic_of(folder, images, **options) for options in (TOGETHER, ALONE))
    batch.values, batch.returns = torch.zeros(batch.num_tokens), torch.rand(batch.num_tokens) * batch.loss_mask
    for _ in range(2):  # the first moves the head, without which nothing is passed on
        together.train_values(batch, ValueLossSpec(), BatchTotals(int(batch.loss_mask.sum()), len(batch)))
    save(together, tmp_path)
    alone.load(tmp_path)
    values = together.values(batch)
    torch.testing.assert_close(values, alone.values(batch), atol=1e-5, rtol=0)
    weights, written = load_file(folder / "model.safetensors"), load_file(tmp_path / "model" / "model.safetensors")
    assert any("vis" in name and not written[name].equal(weights[name]) for name in written)
    a, b, *_ = tiny_vision.stored(images, drawn("circle"), drawn("star", color="blue"))
    batch.tokens = torch.where(batch.tokens == a, b, batch.tokens)
    assert (together.values(batch) - values).abs().max() > 1e-4, "another image of the same size"


LAYOUTS = {
    "fsdp2": ("qwen2.5-vl", ["plain", "cut", "frozen", "recomputed"]),
    "zero": ("qwen2.5-vl", ["zero0", "zero1", "zero2-cut", "zero3", "zero3-cut", "zero3-frozen", "zero3-recomputed"]),
    "tiles": ("smolvlm", ["plain", "zero1", "zero3-cut"]),
    "deeper": ("qwen3-vl", ["cut", "zero3"]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_two_ranks_compute_what_one_does(
    name: str, programs: Programs, folders: dict[str, Path], images: Path, tmp_path: Path
) -> None:
    """With images on both ranks, with texts alone on one, and with nothing on one. The whole float32 gradient is within 1e-6 of
    its length; each is 2e-7 to 6e-7 from that in float64. What is saved is the model as it was, for all who load it."""
    family, layouts = LAYOUTS[name]
    folder, port = folders[family], free_port()
    batch = batch_of(folder, images)
    program = Path(__file__).with_name("vision_rank_program.py")
    programs.run(program, *((folder, images, tmp_path, rank, port, *layouts) for rank in range(2)))
    ranks = [load_file(tmp_path / f"rank-{rank}.safetensors") for rank in range(2)]
    totals = BatchTotals(int(batch.loss_mask.sum()), len(batch))
    weights = load_file(folder / "model.safetensors")
    for name in layouts:
        one = strategy_of(folder, images, freeze_vision="frozen" in name, **TOGETHER)
        kept: dict[str, Tensor] = {}
        one._step = lambda one=one, kept=kept: float(bool(kept.update(of(one)))) + 1.0
        one.train_step(prepare_batch(batch, LOSS), LOSS, totals)
        for which in ("both", "texts", "none"):
            prefix = f"{name}/{which}/"
            for found in ranks:
                gradient = {n.removeprefix(prefix): t for n, t in found.items() if n.startswith(prefix) and "logprobs" not in n}
                assert distance(gradient, kept) <= 1e-6, prefix
            logprobs = torch.cat([found[f"{prefix}logprobs"] for found in ranks])
            assert len(logprobs) == batch.num_tokens and logprobs.isfinite().all()
        model_folder.check_sight(tmp_path / name / "model", True)
        torch.testing.assert_close(saved(tmp_path / name / "model", "model"), weights, atol=1e-20, rtol=0)

"""Ranks that divide the tokens of each micro-batch against one rank that has all: log-probs within 1e-6 of the largest, the whole
gradient within 1e-5 of its length, metrics within 1e-5, and weights after a step of 1e-3 within 1e-5 but for what AdamW makes of
rounding."""

import json
import math
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny_models import numbered_tokenizer, tiny_mixture, tiny_qwen2
from transformers import Gemma2Config, Qwen3_5TextConfig

from roll.core.configs.arguments import ModelArguments, StrategyArguments
from roll.core.configs.worker import WorkerConfig
from roll.core.workers.train_interface import RankContext
from roll.platform.ports import free_port
from roll.strategies.train.ulysses import check_folder

FILE = Path(__file__).with_name("ulysses_program.py")
PROGRAM = SimpleNamespace(**runpy.run_path(str(FILE)))
NOISE = "k_proj.bias"
"""Attention does not depend on it: its gradient is rounding, which AdamW makes steps of."""
TWO = [
    *[(layout, "grouped", 2) for layout in ("recomputed", "lora", "zero2", "zero3", "taught", "critic")],
    ("fsdp2", "one", 2),
    ("fsdp2", "sliding", 2),
    ("replayed", "mixture", 2),
]
FOUR = [("fsdp2", "grouped", 4), ("recomputed", "grouped", 2), ("copies", "grouped", 2), ("fsdp2", "three", 2)]
"""Four ranks with one micro-batch, and two pairs with one each; keys of 2 heads for 4 ranks, and of 3 for 2."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder, heads = tmp_path_factory.mktemp("ulysses"), {"num_attention_heads": 4, "initializer_range": 0.2}
    sliding = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    made = {
        "grouped": tiny_qwen2(37, **heads, num_key_value_heads=2),
        "one": tiny_qwen2(37, **heads, num_key_value_heads=1),
        "three": tiny_qwen2(37, hidden_size=24, num_attention_heads=6, num_key_value_heads=3, initializer_range=0.2),
        "sliding": tiny_qwen2(37, **heads, num_key_value_heads=2, **sliding),
        "mixture": tiny_mixture(37),
    }
    for name, model in made.items():
        model.save_pretrained(folder / name)
        numbered_tokenizer(37).save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="module")
def runs(programs, models, tmp_path_factory):
    """The folder of what ranks found."""
    pytest.importorskip("deepspeed", reason="needs requirements/deepspeed.txt")
    out = tmp_path_factory.mktemp("ranks")
    for ranks, cases in ((2, TWO), (4, FOUR)):
        port, given = free_port(), json.dumps([(layout, str(models / model), size) for layout, model, size in cases])
        programs.run(FILE, *((given, out, rank, ranks, port) for rank in range(ranks)))
    return out


@pytest.fixture(scope="module")
def alone(models):
    """The outcome of one rank, by layout and model."""
    found = {}

    def of(layout, model):
        if (layout, model) not in found:
            found[layout, model] = PROGRAM.outcome(layout, models / model, RankContext(), 1)
        return found[layout, model]

    return of


def distance(some, other):
    assert some.keys() == other.keys()
    lengths = (sum(float(each[n].double().square().sum()) for n in other) for each in (_less(some, other), other))
    return math.sqrt(next(lengths) / next(lengths))


def _less(some, other):
    return {name: some[name] - tensor for name, tensor in other.items()}


def assert_alike(found, expected, batch, ranks_alike):
    each = expected["per_token"].split(batch.lengths.tolist())
    wanted = torch.cat([each[i] for i in found["share"]])
    assert (found["per_token"] - wanted).abs().max() <= 1e-6 * wanted.abs().max()
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-5, abs=1e-8)
    assert found["metrics"] == ranks_alike["metrics"], "all ranks say the same"
    if found["gradient"]:
        assert distance(found["gradient"], expected["gradient"]) <= 1e-5
    for name, tensor in expected["weights"].items():
        if NOISE not in name:
            torch.testing.assert_close(found["weights"][name], tensor, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("layout", "model", "ranks", "size"), [(*case[:2], n, case[2]) for n, cases in ((2, TWO), (4, FOUR)) for case in cases]
)
def test_ranks_that_divide_tokens_have_the_numbers_of_one(runs, alone, layout, model, ranks, size):
    said = [torch.load(runs / f"{layout}-{model}-{ranks}-{size}-{rank}.pt", weights_only=False) for rank in range(ranks)]
    expected, batch = alone("fsdp2" if layout.startswith("zero") else layout, model), PROGRAM.make_batch(layout)
    assert [each["share"] for each in said] == [list(range(rank // size, 7, ranks // size)) for rank in range(ranks)]
    for found in said:
        assert_alike(found, expected, batch, said[0])
    if layout == "taught":
        (logprobs, ids, most), *others = (each["top"] for each in (expected, *said))
        for other in others:
            assert torch.equal(other[1], ids)
            torch.testing.assert_close(other[0], logprobs, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(other[2], most, rtol=1e-6, atol=1e-6)


def test_a_model_that_cannot_be_divided_is_refused_by_its_config_alone(tmp_path, models):
    check_folder(models / "grouped", 4)
    with pytest.raises(ValueError, match="3 ranks do not divide the model's num_attention_heads 4"):
        check_folder(models / "grouped", 3)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl"}))
    with pytest.raises(ValueError, match="a model that sees"):
        check_folder(tmp_path, 2)
    for name, config in {"linear": Qwen3_5TextConfig(), "capped": Gemma2Config()}.items():
        config.save_pretrained(tmp_path / name)
        with pytest.raises(ValueError, match="mix tokens by more than attention"):
            check_folder(tmp_path / name, 2)


def test_the_workers_of_a_group_are_given_one_part_of_the_batch():
    back_end = StrategyArguments(strategy_name="fsdp2_train")
    role = WorkerConfig(model_args=ModelArguments(ulysses_size=2), strategy_args=back_end, device_mapping="0-5")
    assert role.data_parallel_size == 3 and role.data_parallel_ranks == (0, 0, 1, 1, 2, 2)

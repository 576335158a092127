"""Batches of samples that show images, and what computes their gradients."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import tiny_vision
import torch
from tiny_vision import IDS, drawn
from torch import Tensor
from train_specs import train_spec

from roll.core.algorithms.loss import LossSpec
from roll.core.data.token_batch import TokenBatch
from roll.core.workers.infer_interface import GenerateResult
from roll.core.workers.train_backends import make_critic, make_train_strategy
from roll.core.workers.train_interface import RankContext
from roll.strategies import model_folder
from roll.strategies.vision.sight import Sight

NO_STEP = {"learning_rate": 1e-3, "max_grad_norm": 1e9, "total_optimizer_steps": 10, "dtype": "fp32"}
ALONE = {"max_tokens_per_microbatch": 1, "max_tokens_per_microbatch_infer": 1}
TOGETHER = {"max_tokens_per_microbatch": 4096, "max_tokens_per_microbatch_infer": 4096}
LOSS = LossSpec(pg_variant="ppo", kl_loss_coef=0.1, entropy_coef=0.01)
PICTURES = (drawn("circle"), drawn("line", (24, 16)), drawn("star", color="blue"))


@functools.cache
def sight_of(folder: Path, images: Path) -> Sight:
    sight = Sight.of(model_folder.load_model(folder, torch.float32, "sdpa"), folder, str(images))
    assert sight is not None
    return sight


def prompts(folder: Path, images: Path) -> list[list[int]]:
    """Two images; one of them again, and another; the same one twice; and a text alone."""
    a, b, c = tiny_vision.stored(images, *PICTURES)

    def shown(number: int) -> list[int]:
        view = sight_of(folder, images)._views.of(number)
        return [IDS["<start>"], *(number if token < 0 else token for token in view.tokens), IDS["<end>"]]

    begin, end = [IDS["user"]], [IDS["what"], IDS["bot"]]
    texts = [shown(a) + shown(b), [*shown(a), IDS["?"], *shown(c)], shown(c) + shown(c), [IDS["where"]] * 3]
    return [begin + text + end for text in texts]


def batch_of(folder: Path, images: Path, seed: int = 0) -> TokenBatch:
    """Four responses to each prompt; in some the policy has written the token that stands for images."""
    generator = torch.Generator().manual_seed(seed)
    some = functools.partial(torch.randint, 0, len(IDS), generator=generator)
    rows, first = [], []
    for prompt in prompts(folder, images):
        long = torch.cat([some((3,)), torch.tensor([IDS["<image>"]]), some((4,))])
        rows += [torch.cat([torch.tensor(prompt), part]) for part in (long[:1], long, some((7,)), long[:6])]
        first += [len(prompt)] * 4
    order = torch.randperm(len(rows), generator=generator).tolist()
    rows, first = [rows[i] for i in order], [first[i] for i in order]
    mask = torch.cat([torch.arange(len(row)) >= at for row, at in zip(rows, first, strict=True)])

    def values() -> Tensor:
        return torch.randn(len(mask), generator=generator) * mask

    return TokenBatch(
        lengths=torch.tensor([len(row) for row in rows]),
        scores=torch.rand(len(rows), generator=generator),
        temperatures=0.5 + torch.rand(len(rows), generator=generator),
        tokens=torch.cat(rows),
        loss_mask=mask,
        behaviour_logprobs=(-2.5 + 0.3 * values()) * mask,
        proximal_logprobs=(-2.5 + 0.3 * values()) * mask,
        reference_logprobs=(-2.5 + 0.3 * values()) * mask,
        advantages=values(),
    )


def strategy_of(folder: Path, images: Path, rank: int = 0, ranks: int = 1, name: str = "fsdp2_train", **options: Any) -> Any:
    spec = train_spec(name, folder, images=str(images), **{**NO_STEP, **options})
    return make_train_strategy(RankContext(rank=rank, world_size=ranks), spec)


def critic_of(folder: Path, images: Path, **options: Any) -> Any:
    return make_critic(RankContext(), train_spec("fsdp2_train", folder, images=str(images), **NO_STEP, **options))


def trained(folder: Path, images: Path, asked: dict[str, list[int]], found: dict[str, GenerateResult]) -> dict[str, torch.Tensor]:
    """What the trainer says of the answers, each as a sample of one batch."""
    rows = {name: torch.tensor([*prompt, *found[name].token_ids]) for name, prompt in asked.items()}
    mask = torch.cat([torch.arange(len(row)) >= len(asked[name]) for name, row in rows.items()])
    lengths = torch.tensor([len(row) for row in rows.values()])
    zeros = torch.zeros(len(mask))
    batch = TokenBatch(
        lengths=lengths,
        scores=torch.zeros(len(rows)),
        temperatures=torch.ones(len(rows)),
        tokens=torch.cat([*rows.values()]),
        loss_mask=mask,
        behaviour_logprobs=zeros,
        advantages=zeros,
    )
    said = strategy_of(folder, images, **TOGETHER).log_probs(batch).split(lengths.tolist())
    return {name: part[len(asked[name]) :] for name, part in zip(rows, said, strict=True)}


def distance(some: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """|some - other| / |other| of whole gradients, summed in float64."""
    assert some.keys() == other.keys()
    square = sum(float((some[name].double() - other[name].double()).square().sum()) for name in other)
    return float((square / sum(float(tensor.double().square().sum()) for tensor in other.values())) ** 0.5)


def of(strategy: Any) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in strategy._model.named_parameters() if p.grad is not None}

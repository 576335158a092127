"""Tokens that vLLM drafts from a request's own n-grams and verifies: whether they have the policy's distribution, and what they
save.

A model of random weights and 24 tokens repeats itself, so most positions have a proposal. Its own distribution at each position
is computed by transformers, and two statistics compare what was sampled with it:

* fit: the probability integral transform of each token, F(x - 1) + v p(x) with v uniform, is uniform and independent if tokens
  have the distribution p; chi-square over 100 cells
* drafts: how often the token after the last n-gram's earlier place was sampled, against Σ p of it, in standard deviations: a
  martingale, because a proposal depends on what came before alone

    python benchmarks/drafted.py [--tokens 1000000] [--slots 256] [--response 128]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from roll.core.workers.infer_engines import make_infer_strategy
from roll.core.workers.infer_interface import GenerateRequest, SamplingParams

VOCABULARY, PROMPT, CELLS = 24, 8, 100
LONGEST = 3
DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": LONGEST}
SAMPLINGS = {
    "temperature 0.8": SamplingParams(temperature=0.8),
    "temperature 1, top_k 6": SamplingParams(top_k=6),
    "temperature 1.2, top_p 0.8": SamplingParams(temperature=1.2, top_p=0.8),
}


def make_model(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen2ForCausalLM(config).eval()


def sampled_from(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """The distribution [..., vocabulary] that is sampled."""
    logits = logits.double() / sampling.temperature
    if sampling.top_k:
        logits = logits.masked_fill(logits < logits.topk(sampling.top_k).values[..., -1:], -torch.inf)
    if sampling.top_p < 1:
        ordered, places = logits.softmax(-1).sort(descending=True)
        out = ordered.cumsum(-1) - ordered >= sampling.top_p
        logits = logits.masked_fill(torch.zeros_like(out).scatter(-1, places, out), -torch.inf)
    return logits.softmax(-1)


def proposals(sequence: Sequence[int], longest: int = LONGEST) -> list[int | None]:
    """For each place, the token behind the first earlier place of the longest n-gram that ends before it."""
    first: dict[tuple[int, ...], int] = {}
    found: list[int | None] = []
    for place, token in enumerate(sequence):
        ends = [tuple(sequence[place - size : place]) for size in range(min(longest, place), 0, -1)]
        found.append(next((first[each] for each in ends if each in first), None))
        for each in ends:
            first.setdefault(each, token)
    return found


@dataclass
class Fit:
    chance: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(1))
    cells: Tensor = field(default_factory=lambda: torch.zeros(CELLS, dtype=torch.int64))
    surplus: float = 0.0
    variance: float = 0.0
    drafted: int = 0

    def add(self, probs: Tensor, tokens: Tensor, drafts: Sequence[int | None]) -> None:
        """Of one response: `probs` [n, vocabulary], `tokens` [n], the proposals for them."""
        below = (probs.cumsum(-1) - probs).gather(-1, tokens[:, None])[:, 0]
        own = probs.gather(-1, tokens[:, None])[:, 0]
        place = below + own * torch.rand(len(own), generator=self.chance, dtype=own.dtype)
        self.cells += torch.bincount((place * CELLS).long().clamp(0, CELLS - 1), minlength=CELLS)
        places = [place for place, draft in enumerate(drafts) if draft is not None]
        proposed = torch.tensor([drafts[place] for place in places])
        p = probs[places].gather(-1, proposed[:, None])[:, 0]
        self.surplus += ((tokens[places] == proposed).double() - p).sum().item()
        self.variance += (p * (1 - p)).sum().item()
        self.drafted += len(places)

    @property
    def tokens(self) -> int:
        return int(self.cells.sum())

    @property
    def p_value(self) -> float:
        expected = self.tokens / CELLS
        square = ((self.cells - expected) ** 2 / expected).sum()
        return float(torch.special.gammaincc(torch.tensor((CELLS - 1) / 2), square / 2))

    @property
    def deviations(self) -> float:
        """Of the number of sampled drafts from the expected one."""
        return float(self.surplus / self.variance**0.5)


def requests_of(round_: int, slots: int, sampling: SamplingParams) -> list[GenerateRequest]:
    chance = torch.Generator().manual_seed(round_)
    prompts = torch.randint(0, VOCABULARY, (slots, PROMPT), generator=chance).tolist()
    return [GenerateRequest(f"{round_}/{i}", prompt, sampling) for i, prompt in enumerate(prompts)]


def compared(
    model: Any, requests: Sequence[GenerateRequest], results: Sequence[Any], sampling: SamplingParams, fit: Fit
) -> float:
    """Adds the responses; returns the largest difference of a reported log-prob from the model's, nats."""
    ids = torch.tensor([[*one.prompt_ids, *result.token_ids] for one, result in zip(requests, results, strict=True)])
    with torch.inference_mode():
        logits = model(ids).logits[:, PROMPT - 1 : -1]
    tokens, probs = ids[:, PROMPT:], sampled_from(logits, sampling)
    logprobs = (logits / sampling.temperature).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    for row, prob, sequence in zip(tokens, probs, ids.tolist(), strict=True):
        fit.add(prob, row, proposals(sequence)[PROMPT:])
    return float((logprobs - torch.tensor([result.logprobs for result in results])).abs().max())


async def measure(args: argparse.Namespace) -> None:
    model = make_model()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        options = {"model_path": folder, "max_running_requests": args.slots, "max_length": PROMPT + args.response, "threads": 1}
        plain = make_infer_strategy("vllm", options)
        drafting = make_infer_strategy("vllm", {**options, "engine_args": {"speculative_config": DRAFTS}})
        engines = {"plain": plain, "drafting": drafting}
        for name, kind in SAMPLINGS.items():
            sampling, seconds = replace(kind, max_new_tokens=args.response), dict.fromkeys(engines, 0.0)
            for side, engine in engines.items():
                fit, worst, rounds = Fit(), 0.0, 0
                while fit.tokens * len(SAMPLINGS) < args.tokens:
                    requests, began = requests_of(rounds, args.slots, sampling), time.perf_counter()
                    results = await asyncio.gather(*map(engine.generate, requests))
                    seconds[side] = time.perf_counter() - began
                    worst, rounds = max(worst, compared(model, requests, results, sampling, fit)), rounds + 1
                print(
                    f"{name:28} {side:9} {fit.tokens:9,} tokens, {fit.drafted:9,} with a proposal: fit p = {fit.p_value:.3f}, "
                    f"drafts {fit.deviations:+.2f} deviations, log-probs within {worst:.1e}, {seconds[side]:.1f} s",
                    flush=True,
                )
        await asyncio.gather(plain.close(), drafting.close())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--response", type=int, default=128)
    asyncio.run(measure(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

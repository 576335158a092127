"""How far the log-probs of an engine and of the trainer of a mixture of experts are apart, of the same weights and after 1, 2 and
4 updates of the trainer, with router replay and without, for two types of numbers of the engine.

A Qwen3-MoE learns four small languages; then `hf_infer` samples from it, and the trainer (`fsdp2_train`, float32) takes AdamW
steps on these samples: a token's advantage is +1 or -1 by whether it is even. Both sides begin with the same weights, and each is
trained in its own way, with replay or without.

    mean, p99, max of |log p(trainer) - log p(engine)| of a sampled token, in nats
    k3             estimate of the KL divergence of the two, r - 1 - log r
    over 0.1       share of the tokens that are further apart than 0.1 nats
    ess            effective sample size of the tokens' importance weights
    experts        share of the engine's experts that the trainer's routers would not have chosen

Then what replay costs, and how far its log-probs are from those of a plain loop over tokens and experts. Exit code 1 if that is
above 1e-4 nats, or if replay does not make the mismatch of the same weights in two types smaller.

    python benchmarks/router_replay.py [--learn_steps 400] [--samples 64] [--response 128] [--lags 0 1 2 4]
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from pipeline_run import save_results
from tokenizers import Tokenizer, models
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

from roll.core.algorithms.loss import LossSpec
from roll.core.configs.arguments import FSDP2Config, ModelArguments, TrainingArguments
from roll.core.data.sample import Prompt, Sample, SampleGroup
from roll.core.data.token_batch import TokenBatch
from roll.core.trainer.batch import token_batch, totals_of
from roll.core.workers.infer_interface import GenerateRequest, GenerateResult, SamplingParams
from roll.core.workers.train_interface import RankContext
from roll.core.workers.train_spec import Optimisation, TrainSpec
from roll.strategies.infer.hf.slot_engine import SlotEngine
from roll.strategies.train.fsdp2 import FSDP2Strategy

VOCABULARY, PROMPT, GROUP = 64, 32, 4
LOSS = LossSpec(pg_variant="reinforce", aggregation="token-mean")


def language(count: int, length: int, seed: int) -> Tensor:
    """[count, length] of four languages: a sequence's first token says which, and in each every token says which four follow it
    with nine tenths of the probability."""
    world = torch.Generator().manual_seed(0)
    likely = torch.randint(VOCABULARY, (4, VOCABULARY, 4), generator=world)
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randint(VOCABULARY, (count, length), generator=draw)
    weights = torch.tensor([0.45, 0.25, 0.15, 0.05, 0.1])
    for t in range(1, length):
        kind = torch.multinomial(weights, count, replacement=True, generator=draw)
        follows = likely[rows[:, 0] % 4, rows[:, t - 1]]
        rows[:, t] = torch.where(kind < 4, follows.gather(1, kind.clamp(max=3)[:, None])[:, 0], rows[:, t])
    return rows


def learnt(args: argparse.Namespace) -> Qwen3MoeForCausalLM:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_hidden_layers=args.layers,
        num_experts=args.experts,
        num_experts_per_tok=args.each,
        norm_topk_prob=True,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = Qwen3MoeForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(args.learn_steps):
        rows = language(32, 64, seed=1 + step)
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, 4 * (1 - step / args.learn_steps))
        loss = nn.functional.cross_entropy(model(rows).logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if args.learn_steps:
        print(f"{args.learn_steps} steps learnt, loss {loss.item():.3f} nats a token")
    return model.eval()


def sampled(
    folder: str, dtype: str, args: argparse.Namespace, routes: bool = True
) -> tuple[list[GenerateResult], list[Any], float]:
    """Results and requests, and the seconds that they took."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    engine = SlotEngine(model, None, max_running_requests=args.samples, max_length=PROMPT + args.response, seed=0)
    prompts = language(args.samples // GROUP, PROMPT, seed=99).tolist()
    requests = [
        GenerateRequest(
            str(i), tuple(prompts[i // GROUP]), SamplingParams(max_new_tokens=args.response, seed=i, with_routes=routes)
        )
        for i in range(args.samples)
    ]
    began, done = time.perf_counter(), dict[str, GenerateResult]()
    for request in requests:
        engine.submit(request)
    while not engine.idle:
        done |= {result.request_id: result for result in engine.step()}
    return [done[request.request_id] for request in requests], requests, time.perf_counter() - began


def batch_of(results: list[GenerateResult], requests: list[Any]) -> TokenBatch:
    groups = [
        SampleGroup(i, 0, Prompt(str(i), list(requests[i * GROUP].prompt_ids), "", "", "", ""))
        for i in range(len(requests) // GROUP)
    ]
    for i, result in enumerate(results):
        group = groups[i // GROUP]
        sample = Sample(group.prompt, i % GROUP, result.token_ids, result.logprobs, result.versions, "length", reward=0.0)
        sample.extras = result.extras
        group.samples.append(sample)
    batch = token_batch(groups, temperature=1.0)
    return batch.with_(advantages=(1.0 - 2.0 * (batch.tokens % 2)) * batch.loss_mask)


def trainer(folder: str, args: argparse.Namespace) -> FSDP2Strategy:
    training = TrainingArguments(learning_rate=args.learning_rate, lr_scheduler_type="constant")
    return FSDP2Strategy(
        RankContext(threads=torch.get_num_threads()),
        TrainSpec(
            model_path=folder,
            model=ModelArguments(dtype="fp32"),
            backend=FSDP2Config(),
            optimisation=Optimisation(arguments=training, total_steps=None, max_grad_norm=1.0, max_tokens_per_microbatch=4096),
            max_tokens_per_microbatch_infer=1 << 30,
            collective_timeout_s=600.0,
        ),
    )


def apart(strategy: FSDP2Strategy, batch: TokenBatch, routes: Tensor) -> dict[str, float]:
    mask = batch.loss_mask
    log_ratio = (strategy.log_probs(batch) - batch.behaviour_logprobs)[mask].double()
    distance, ratio = log_ratio.abs(), log_ratio.exp()
    strategy.log_probs(batch.with_(routes=routes))
    experts = strategy._scorer.metrics["actor/router_replay_changed"].result() or 0.0
    return {
        "mean": distance.mean().item(),
        "p99": distance.quantile(0.99).item(),
        "max": distance.max().item(),
        "k3": (ratio - 1 - log_ratio).mean().item(),
        "over": (distance > 0.1).double().mean().item(),
        "ess": (ratio.sum().square() / (len(ratio) * ratio.square().sum())).item(),
        "experts": experts,
    }


def measure(folder: str, dtype: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    results, requests, _ = sampled(folder, dtype, args)
    batch = batch_of(results, requests)
    assert batch.routes is not None
    rows = []
    for replay in (False, True):
        own = batch if replay else batch.with_(routes=None)
        strategy, updates = trainer(folder, args), 0
        for lag in args.lags:
            while updates < lag:
                strategy.train_step(own, LOSS, totals_of(own))
                updates += 1
            found = apart(strategy, own, batch.routes)
            rows.append({"engine": dtype, "lag": lag, "replay": replay, **found})
            figures = " ".join(f"{found[name]:9.2e}" for name in ("mean", "p99", "max", "k3"))
            shares = f"{found['over']:9.2%} {found['ess']:8.4f} {found['experts']:8.2%}"
            print(f"{dtype:9} {lag:3}  {'with' if replay else 'without':8} {figures} {shares}", flush=True)
        strategy.close()
    return rows


def plain_loop(folder: str, batch: TokenBatch) -> Tensor:
    """[N] log-probs through transformers' model, whose layers of experts are loops over tokens and the experts that are given."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    given: list[Tensor] = []

    def mixed(block: Any, layer: int, hidden: Tensor) -> Tensor:
        outputs = []
        for token, chosen in zip(hidden[0], given[0][:, layer].long().tolist(), strict=True):
            scores = (block.gate.weight @ token).softmax(-1)[chosen]
            halves = [(block.experts.gate_up_proj[e] @ token).chunk(2) for e in chosen]
            parts = [block.experts.down_proj[e] @ (nn.functional.silu(g) * u) for e, (g, u) in zip(chosen, halves, strict=True)]
            outputs.append((scores / scores.sum()) @ torch.stack(parts))
        return torch.stack(outputs)[None]

    for i, layer in enumerate(model.model.layers):
        layer.mlp.forward = lambda hidden, block=layer.mlp, i=i: mixed(block, i, hidden)
    assert batch.routes is not None
    out = []
    for tokens, routes in zip(
        batch.tokens.split(batch.lengths.tolist()), batch.routes.split(batch.lengths.tolist()), strict=True
    ):
        given[:] = [torch.cat([routes[:-1], routes[:1]])]  # nobody has computed the last token, and nothing depends on it
        log_p = model(tokens[None], use_cache=False).logits[0, :-1].log_softmax(-1)
        out.append(torch.cat([log_p.new_zeros(1), log_p.gather(1, tokens[1:, None])[:, 0]]))
    return torch.cat(out) * batch.loss_mask


@torch.no_grad()
def equality(folder: str, args: argparse.Namespace) -> float:
    """Largest distance of the trainer's log-probs from the plain loop's, over the first two groups of a bfloat16 engine."""
    results, requests, _ = sampled(folder, "bfloat16", args)
    batch = batch_of(results, requests).select(list(range(2 * GROUP)))
    strategy = trainer(folder, args)
    difference = (strategy.log_probs(batch) - plain_loop(folder, batch)).abs().max().item()
    strategy.close()
    return difference


def cost(folder: str, args: argparse.Namespace) -> dict[str, float]:
    """Seconds, the fewest of three runs that alternate; bytes of a token."""
    seconds = dict.fromkeys(("sampling", "sampling_with", "step", "step_with"), math.inf)
    for _ in range(3):
        for name, records in (("sampling", False), ("sampling_with", True)):
            results, requests, spent = sampled(folder, "float32", args, records)
            seconds[name] = min(seconds[name], spent)
    batch, strategy = batch_of(results, requests), trainer(folder, args)
    for _ in range(3):
        for name, given in (("step", batch.with_(routes=None)), ("step_with", batch)):
            began = time.perf_counter()
            strategy.train_step(given, LOSS, totals_of(given))
            seconds[name] = min(seconds[name], time.perf_counter() - began)
    strategy.close()
    routes = results[0].extras.routes
    assert routes is not None
    return seconds | {
        "bytes_per_token": routes.experts.nbytes / len(routes),
        "json_bytes_per_token": len(json.dumps(routes.to_json())) / len(routes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--each", type=int, default=4, help="experts of a token")
    parser.add_argument("--learn_steps", type=int, default=400)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--response", type=int, default=128)
    parser.add_argument("--learning_rate", type=float, default=2e-5)
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        learnt(args).save_pretrained(folder)
        core = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))  # results are not read
        PreTrainedTokenizerFast(tokenizer_object=core).save_pretrained(Path(folder))
        print(f"\n{'engine':9} lag  replay        mean       p99       max        k3  over 0.1      ess  experts")
        rows = [row for dtype in ("bfloat16", "float32") for row in measure(folder, dtype, args)]
        spent, difference = cost(folder, args), equality(folder, args)
    print(
        f"\n{spent['bytes_per_token']:.0f} bytes of a token in a sample, {spent['json_bytes_per_token']:.0f} in a checkpoint or "
        f"database\nsampling {spent['sampling']:.2f} s, with experts {spent['sampling_with']:.2f} s; an optimiser step "
        f"{spent['step']:.2f} s, with replay {spent['step_with']:.2f} s"
    )
    print(f"largest difference from a plain loop: {difference:.1e} nats")
    save_results("router_replay", {"arguments": vars(args), "rows": rows, "cost": spent, "plain_loop": difference})
    fresh = {row["replay"]: row["k3"] for row in rows if row["engine"] == "bfloat16" and row["lag"] == 0}
    if difference > 1e-4 or not fresh[True] < fresh[False]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

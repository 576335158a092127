"""One GPU: tokens/s, model FLOP utilisation and peak memory of training and of generation, in bf16 with random weights.

Every side runs in a process of its own, after the one before has given the device back. A training step is forward, backward and
AdamW over `--sequences` samples of `--length` tokens, all trained but the first of each, and log-probs of the same samples are
measured beside it; generation is `--requests` at once, of 24 prompt and `--response` sampled tokens. All are the median of
`--steps`, after two that warm up, in which what is to be compiled is, and graphs are captured; `hf_infer-eager` has none.
`torch` and `torch-compiled` are plain torch (ceiling.py): what share of the latter's tokens/s a trainer reaches is a column.

`--load groups`: groups of 8 begin with a prompt of `--prompt` tokens. `--load tails`: the same, and responses of 256 tokens to
what is left of `--length`, most of them short. `--load turns`: ten turns of an episode, each a sample that begins with those
before it, the tenth of `--length` tokens; the later half of a turn is trained. Tokens/s count the samples' tokens, however many
are computed. `--profile` tells where the time of a step goes: kernels by kind and name, launches, the share of the time in which
the device computes, and waits.

MFU = tokens/s x FLOPs of a token / peak FLOP/s of the device, with the FLOPs that the model needs (PaLM, arXiv:2204.02311,
appendix B; recomputation for gradient checkpointing is not counted, nor is the causal mask's saving):

    training    6 N + 12 L H Q T     N parameters that multiply (a tied embedding once, an untied input embedding not),
    generation  2 N +  4 L H Q T     L layers, H heads of size Q; T: length of the sample, or mean context of a sampled token
                                     (prefill is in the time but not in the FLOPs)

Memory is the peak that torch allocated; that of vllm, whose process is another, is what the device lost to it: mostly the KV
cache, as large as `--vllm_share` allows.

    python benchmarks/gpu.py [--sides torch torch-compiled fsdp2 deepspeed megatron hf_infer vllm ...] [--size 500M | 1.5B | 7B]

7B trains on no device of 80 GB: name the engines for it.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import multiprocessing
import re
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from ceiling import CEILINGS, Ceiling
from device_profile import profiled, told
from engines import PROMPT, SIZES, make_model, make_prompts, requests, save
from pipeline_run import save_results
from torch import Tensor
from transformers import AutoModelForCausalLM

from roll.core.algorithms.loss import LossSpec
from roll.core.configs.arguments import FSDP2Config, ModelArguments, TrainBackendConfig, TrainingArguments
from roll.core.configs.backend_arguments import DeepSpeedConfig, MegatronConfig, ZeroConfig
from roll.core.data.token_batch import TokenBatch
from roll.core.workers.infer_engines import make_infer_strategy
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import BatchTotals, RankContext
from roll.core.workers.train_spec import Optimisation, TrainSpec
from roll.strategies.infer.vllm.arguments import check_installed

VLLM_PYTHON = Path(__file__).parents[1] / ".venv-vllm/bin/python"
"""Where docs_roll/engines.md puts it."""
TRAINERS = {"fsdp2": "torch", "deepspeed": "deepspeed", "megatron": "megatron"}
"""Side -> the package it needs."""
ENGINES = ("hf_infer", "hf_infer-eager", "vllm")
AIMS = {("500M", 128): 25_000, ("500M", 512): 60_000}
"""Tokens/s of hf_infer on an H200, not measured: 128 requests took 36 ms a token step without graphs."""
SIDES = [*CEILINGS, *TRAINERS, *ENGINES]
WARM_UP = 2
GROUP, SHORTEST, TURNS = 8, 256, 10
"""Samples that share a prompt; tokens of the shortest response of long tails; turns of an episode."""

# Dense bf16 Tensor Core FLOP/s of NVIDIA's data sheets (half of what stands there "with sparsity"), by words of the device's
# name; the first that fits. H100 and H200 without a suffix are the SXM modules.
PEAKS: tuple[tuple[str, float], ...] = (
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H200 NVL", 835e12),
    ("H100", 989e12),
    ("H200", 989e12),
    ("A100", 312e12),
    ("L40S", 362e12),
    ("L4", 121e12),
    ("A10", 125e12),
)


def peak_flops(device_name: str) -> float | None:
    """Of the device that `torch.cuda.get_device_name` calls so; None if it is not in the table, or a part (MIG) of one."""
    words = device_name.replace("-", " ")
    if "MIG" in words.split():
        return None
    return next((peak for name, peak in PEAKS if re.search(rf"\b{'.*'.join(name.split())}\b", words)), None)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What the model multiplies for a token."""

    parameters: int
    """In matrix products: all but an embedding that is only looked up."""
    attention: int
    """L H Q: layers x heads x size of a head."""

    def training(self, length: int) -> float:
        """FLOPs of a token in samples of this length: forward, and backward, which is two forwards."""
        return 6.0 * self.parameters + 12.0 * self.attention * length

    def generation(self, prompt: int, response: int) -> float:
        """FLOPs of a sampled token, in the mean: token i is sampled from `prompt` + i - 1 tokens."""
        return 2.0 * self.parameters + 4.0 * self.attention * (prompt + (response - 1) / 2)


def arithmetic(model: Any) -> Arithmetic:
    config = model.config
    looked_up = 0 if config.tie_word_embeddings else model.get_input_embeddings().weight.numel()
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Arithmetic(model.num_parameters() - looked_up, config.num_hidden_layers * config.num_attention_heads * head)


@dataclass(frozen=True, slots=True)
class Row:
    side: str
    tokens_per_s: float
    flops_per_token: float
    peak_bytes: int
    logprobs_per_s: float | None = None
    """Tokens."""
    profile: dict[str, Any] | None = None

    def mfu(self, peak: float) -> float:
        return self.tokens_per_s * self.flops_per_token / peak


def trainer(side: str, folder: str, args: argparse.Namespace) -> Any:
    backends: dict[str, TrainBackendConfig] = {
        "fsdp2": FSDP2Config(compile=args.compile),
        "deepspeed": DeepSpeedConfig(zero_optimization=ZeroConfig(stage=args.zero_stage), compile=args.compile),
        "megatron": MegatronConfig(compile=args.compile),
    }
    optimisation = Optimisation(
        arguments=TrainingArguments(lr_scheduler_type="constant"),
        total_steps=None,
        max_grad_norm=1.0,
        max_tokens_per_microbatch=args.microbatch_tokens,
    )
    spec = TrainSpec(
        model_path=folder,
        model=ModelArguments(
            dtype="bf16",
            disable_gradient_checkpointing=not args.gradient_checkpointing,
            lora_target="all-linear" if args.lora else None,
        ),
        backend=backends[side],
        optimisation=optimisation,
        max_tokens_per_microbatch_infer=args.microbatch_tokens,
        collective_timeout_s=600.0,
    )
    return make_train_strategy(RankContext(device=args.device), spec)


def seconds_of(call: Callable[[], Any], args: argparse.Namespace) -> float:
    spent = []
    for _ in range(WARM_UP + args.steps):
        began = time.perf_counter()
        call()
        if args.device != "cpu":
            torch.cuda.synchronize()
        spent.append(time.perf_counter() - began)
    return statistics.median(spent[WARM_UP:])


def measure_training(side: str, folder: str, args: argparse.Namespace, counts: Arithmetic) -> Row:
    batch = load(args)
    if side in CEILINGS:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        plain, tokens = Ceiling(model, side, torch.device(args.device)), batch.tokens.view(args.sequences, -1)
        step, score = (partial(call, tokens, args.microbatch_tokens) for call in (plain.step, plain.score))
    else:
        strategy = trainer(side, folder, args)
        totals = BatchTotals(int(batch.loss_mask.sum()), len(batch))
        step = partial(strategy.train_step, batch, LossSpec(pg_variant="ppo"), totals)
        score = partial(strategy.log_probs, batch)
    seconds, scoring = seconds_of(step, args), seconds_of(score, args)
    peak = torch.cuda.max_memory_allocated() if args.device != "cpu" else 0
    found = profiled(step, seconds) if args.profile else None
    mean = batch.num_tokens / len(batch)
    return Row(side, batch.num_tokens / seconds, counts.training(round(mean)), peak, batch.num_tokens / scoring, found)


def load(args: argparse.Namespace) -> TokenBatch:
    """Samples of `--load`."""
    batch = random_batch(args.sequences, args.length, SIZES[args.size]["vocab_size"])
    if args.load == "equal":
        return batch
    texts = batch.tokens.view(args.sequences, -1)
    rows, trained_from = episodes(texts) if args.load == "turns" else groups(texts, args.prompt, tails=args.load == "tails")
    mask = torch.cat([torch.arange(len(row)) >= first for row, first in zip(rows, trained_from, strict=True)])
    return batch.with_(
        lengths=torch.tensor([len(row) for row in rows]),
        tokens=torch.cat(rows),
        loss_mask=mask,
        behaviour_logprobs=-12.0 * mask,
        advantages=batch.advantages[: len(mask)] * mask,
    )


def groups(texts: Tensor, prompt: int, tails: bool) -> tuple[list[Tensor], list[int]]:
    """Responses to a prompt that a group shares. `tails`: of lengths drawn from a distribution with a long tail."""
    longest = texts.shape[1] - prompt
    responses = torch.full((len(texts),), longest)
    if tails:
        drawn = SHORTEST * torch.empty(len(texts)).log_normal_(0.7, 0.9, generator=torch.Generator().manual_seed(1))
        responses = drawn.long().clamp(SHORTEST, longest)
    rows = [
        torch.cat([texts[number - number % GROUP, :prompt], text[prompt : prompt + int(responses[number])]])
        for number, text in enumerate(texts)
    ]
    return rows, [prompt] * len(rows)


def episodes(texts: Tensor) -> tuple[list[Tensor], list[int]]:
    """Turns of episodes, each a sample of its own that begins with the turns before it; its later half is the policy's."""
    turn = texts.shape[1] // TURNS
    rows = [texts[number - number % TURNS, : (number % TURNS + 1) * turn] for number in range(len(texts))]
    return rows, [len(row) - turn // 2 for row in rows]


def random_batch(sequences: int, length: int, vocabulary: int, seed: int = 0) -> TokenBatch:
    """Samples of which all but the first token is trained."""
    generator = torch.Generator().manual_seed(seed)
    count = sequences * length
    mask = torch.arange(count) % length > 0
    return TokenBatch(
        lengths=torch.full((sequences,), length),
        scores=torch.zeros(sequences),
        temperatures=torch.ones(sequences),
        tokens=torch.randint(vocabulary, (count,), generator=generator),
        loss_mask=mask,
        behaviour_logprobs=-12.0 * mask,
        advantages=torch.randn(count, generator=generator) * mask,
    )


async def measure_generation(side: str, count: int, folder: str, args: argparse.Namespace, counts: Arithmetic) -> Row:
    torch.cuda.init()
    free_before, _ = torch.cuda.mem_get_info()
    own: dict[str, Any] = {"device": args.device, "graphs": side == "hf_infer"}
    if side == "vllm":
        interpreter = {} if args.vllm_python == sys.executable else {"python": args.vllm_python}
        own = {"devices": [args.device], "engine_args": {"gpu_memory_utilization": args.vllm_share, **interpreter}}
    longest = PROMPT + args.response
    options = {"model_path": folder, "max_running_requests": count, "max_length": longest, "dtype": "bfloat16", **own}
    engine = make_infer_strategy(side.removesuffix("-eager"), options)
    prompts = make_prompts(count, SIZES[args.size]["vocab_size"])
    spent = []
    for _ in range(WARM_UP + args.steps):
        began = time.perf_counter()
        await asyncio.gather(*map(engine.generate, requests(prompts, [args.response] * count)))
        spent.append(time.perf_counter() - began)
    lost = free_before - torch.cuda.mem_get_info()[0]
    peak = lost if side == "vllm" else torch.cuda.max_memory_allocated()
    await engine.close()
    rate = count * args.response / statistics.median(spent[WARM_UP:])
    return Row(f"{side}, {count}", rate, counts.generation(PROMPT, args.response), peak)


def measure(side: str, count: int, folder: str, args: argparse.Namespace, counts: Arithmetic) -> Row:
    if side in (*TRAINERS, *CEILINGS):
        return measure_training(side, folder, args, counts)
    return asyncio.run(measure_generation(side, count, folder, args, counts))


def in_new_process(side: str, count: int, folder: str, args: argparse.Namespace, counts: Arithmetic) -> Row:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, side, count, folder, args, counts).result()


def missing(side: str, vllm_python: str) -> str | None:
    """What must be installed first, if anything."""
    if side == "vllm":
        try:
            check_installed(vllm_python)
        except ValueError as error:
            return f"vllm for GPUs (see docs_roll/engines.md, --vllm_python): {error}"
    package = TRAINERS.get(side)
    return f"requirements/{side}.txt" if package and importlib.util.find_spec(package) is None else None


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of at least 1")
    return int(text)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--size", choices=SIZES, default="500M", help="from 500M on: the architectures of Qwen2.5")
    parser.add_argument("--steps", type=positive, default=5)
    parser.add_argument("--device", default="cuda:0", help="cpu: of trainers, to see that the benchmark runs")
    parser.add_argument("--profile", action="store_true", help="where the time of a training step goes")
    parser.add_argument("--json", type=Path, help="a file for the rows, besides the results' folder")
    parser.add_argument("--peak_tflops", type=float, help="dense bf16 peak of a device that the table does not know")
    training = parser.add_argument_group("training")
    training.add_argument("--sequences", type=positive, default=32)
    training.add_argument("--length", type=positive, default=2048, help="tokens of a sample, at least 2")
    training.add_argument("--microbatch_tokens", type=positive, default=8192, help="of 500M: 37 GiB; 16384: 66 GiB")
    training.add_argument("--load", choices=("equal", "groups", "tails", "turns"), default="equal")
    training.add_argument("--prompt", type=positive, default=512, help="tokens that a group shares")
    training.add_argument("--compile", choices=("auto", "true", "false"), default="auto", help="of the trainers")
    training.add_argument("--lora", action="store_true", help="adapters of rank 8 on all linear layers")
    training.add_argument("--gradient_checkpointing", action="store_true")
    training.add_argument("--zero_stage", type=int, choices=(0, 1, 2, 3), default=2, help="of deepspeed")
    generation = parser.add_argument_group("generation")
    generation.add_argument("--requests", nargs="+", type=positive, default=[128, 512], help="at once; an engine for each")
    generation.add_argument("--response", type=positive, default=512)
    generation.add_argument("--vllm_python", default=str(VLLM_PYTHON), help="the interpreter that has vllm for GPUs")
    generation.add_argument("--vllm_share", type=float, default=0.5, help="gpu_memory_utilization of vllm")
    args = parser.parse_args()
    args.compile = {"true": True, "false": False}.get(args.compile, args.compile)
    if args.load in ("groups", "tails") and (left := args.length - args.prompt) < (SHORTEST if args.load == "tails" else 1):
        parser.error(f"argument --prompt: {args.prompt} of --length {args.length} leave {left} tokens of a response")
    if args.load == "turns" and args.length < 2 * TURNS:
        parser.error(f"argument --length: {args.length} leaves {TURNS} turns less than two tokens each")
    if args.load in ("tails", "turns") and (plain := [side for side in args.sides if side in CEILINGS]):
        parser.error(f"argument --load: {', '.join(plain)} compute samples of one length")
    if args.length < 2:
        parser.error(f"argument --length: {args.length} leaves no token to train")
    if not 0 < args.vllm_share <= 1:
        parser.error(f"argument --vllm_share: {args.vllm_share} is not in (0, 1]")
    if args.peak_tflops is not None and args.peak_tflops <= 0:
        parser.error(f"argument --peak_tflops: {args.peak_tflops} is not positive")
    if args.device != "cpu" and not torch.cuda.is_available():
        parser.error("no GPU: torch.cuda.is_available() is False")
    if lacking := [f"{side} needs {what}" for side in args.sides if (what := missing(side, args.vllm_python))]:
        parser.error(f"argument --sides: {'; '.join(lacking)}")
    return args


def show(row: Row, peak: float | None, ceiling: float | None) -> None:
    training = row.logprobs_per_s is not None
    shares = [
        "-" if peak is None else f"{row.mfu(peak):.1%}",
        f"{row.logprobs_per_s:,.0f}" if row.logprobs_per_s else "-",
        f"{row.logprobs_per_s * row.flops_per_token / 3 / peak:.1%}" if row.logprobs_per_s and peak else "-",
        f"{row.tokens_per_s / ceiling:.2f}" if training and ceiling else "-",
    ]
    columns = " ".join(f"{share:>12}" for share in shares)
    print(f"{row.side:20} {row.tokens_per_s:12,.0f} {columns} {row.peak_bytes / 2**30:10.2f}", flush=True)
    for line in told(row.profile) if row.profile else ():
        print(line)


def results(rows: list[Row], device: str, peak: float | None, args: argparse.Namespace) -> dict[str, Any]:
    return {
        "device": device,
        "torch": torch.__version__,
        "arguments": {key: str(value) for key, value in vars(args).items()},
        "rows": [asdict(row) | {"mfu": row.mfu(peak) if peak else None} for row in rows],
    }


def main() -> None:
    args = parse()
    name = "CPU" if args.device == "cpu" else torch.cuda.get_device_name(args.device)
    peak = args.peak_tflops * 1e12 if args.peak_tflops else peak_flops(name)
    model = make_model(args.size)
    model.config.max_position_embeddings = max(args.length, PROMPT + args.response)
    counts = arithmetic(model)
    known = f"{peak / 1e12:.0f} TFLOP/s in bf16" if peak else "peak not known: name it with --peak_tflops"
    print(f"{name} ({known}), torch {torch.__version__}, {counts.parameters / 1e6:.0f} M parameters")
    heads = " ".join(f"{head:>12}" for head in ("MFU", "log-probs/s", "their MFU", "of compiled"))
    print(f"{'side':20} {'tokens/s':>12} {heads} {'peak GiB':>10}")
    rows: list[Row] = []
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        save(model, folder)
        del model
        for side, count in [(each, count) for each in args.sides for count in (args.requests if each in ENGINES else (0,))]:
            try:
                rows.append(in_new_process(side, count, folder, args, counts))
            except Exception as error:  # boundary: the minutes of a borrowed device are for the other sides, too
                failed = True
                traceback.print_exception(error)
                print(f"{side:20} failed: {type(error).__name__}: {' '.join(str(error).split()[:40])}", flush=True)
                continue
            show(rows[-1], peak, next((row.tokens_per_s for row in rows if row.side == CEILINGS[1]), None))
            if side == "hf_infer" and (args.size, count) in AIMS:
                print(f"{'  aim (H200)':20} {AIMS[args.size, count]:12,}")
            if args.json:
                args.json.write_text(json.dumps(results(rows, name, peak, args), indent=1) + "\n")
    save_results("gpu", results(rows, name, peak, args))
    sys.exit(failed)


if __name__ == "__main__":
    main()

"""What recording every step for `roll replay` costs: paired runs with and without it, in turns, and the seconds within them that
`batches.jsonl` took; its bytes a token.

The load is that of `rlvr_vs_trl.py`: 128 responses a step with long-tailed lengths, a model of 0.8 M parameters, so small that a
step has little to hide the recording behind.

    python benchmarks/replay_cost.py [--pairs 4] [--steps 12]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import letters
from pipeline_run import ROOT, read_run, save_results

from roll.api import load_config, train
from roll.core.record.batch_log import BATCHES
from roll.topologies.replay.written_batches import WrittenBatches

TARGET = 0.02
"""Share of a step."""
SPENT: list[float] = []
"""Seconds of each call that records."""


def timed(method: str) -> None:
    original: Callable[..., Any] = getattr(WrittenBatches, method)

    def call(self: WrittenBatches, *given: object) -> Any:
        began = time.perf_counter()
        try:
            return original(self, *given)
        finally:
            SPENT.append(time.perf_counter() - began)

    async def awaited(self: WrittenBatches, *given: object) -> Any:
        began = time.perf_counter()
        try:
            return await original(self, *given)
        finally:
            SPENT.append(time.perf_counter() - began)

    setattr(WrittenBatches, method, awaited if method == "leased" else call)


def one(folder: Path, name: str, logged: str, steps: int) -> dict[str, float]:
    first, last = letters.WARM_UP, letters.WARM_UP + steps
    overrides = [
        f"max_steps={last}",
        f"pretrain={folder / 'model'}",
        f"actor_train.data_args.file_name={folder / 'prompts.jsonl'}",
        f"rollout_log_per_step={logged}",
    ]
    SPENT.clear()
    overrides += [f"output_dir={folder}", f"exp_name={name}", "track_with=none", "validation=null"]
    summary = train(load_config(ROOT / "benchmarks" / "letters.yaml", overrides), local=True)
    assert summary["status"] == "finished", summary["reason"]
    run = read_run(folder / name)
    rows = run.between(first, last)
    files = list((folder / name).rglob(BATCHES))
    written = sum(file.stat().st_size for file in files)
    tokens = sum(row["tokens/response_length/mean"] for row in run.between(0, last)) * letters.PROMPTS_PER_STEP * letters.GROUP
    return {
        "step_s": statistics.median(row["time/step_s"] for row in rows),
        "period_s": run.period_s(first, last),
        "recording_s": sum(SPENT) / last,
        "bytes_per_token": written / tokens,
        "bytes_per_step": written / last,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    for method in ("leased", "trained", "gathered"):
        timed(method)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        letters.make(folder, 128, 4, 1000)
        pairs = [
            {logged: one(folder, f"{logged}-{i}", logged, args.steps) for logged in (("8", "all") if i % 2 else ("all", "8"))}
            for i in range(args.pairs)
        ]
    recorded = [pair["all"] for pair in pairs]
    share = statistics.median(each["recording_s"] / each["step_s"] for each in recorded)
    ratios = [pair["all"]["step_s"] / pair["8"]["step_s"] for pair in pairs]
    step_s, seconds = (statistics.median(each[name] for each in recorded) for name in ("step_s", "recording_s"))
    print(f"batches.jsonl: {seconds * 1e3:.2f} ms of a step of {step_s * 1e3:.0f} ms, {share:.2%} (target: {TARGET:.0%})")
    print(f"{recorded[0]['bytes_per_token']:.1f} bytes a response token, {recorded[0]['bytes_per_step'] / 1e3:.0f} kB a step")
    spread = f"from {min(ratios):.3f} to {max(ratios):.3f} over {args.pairs} pairs"
    print(f"step with rollout_log_per_step all / 8 (samples.jsonl, too): {statistics.median(ratios):.3f}, {spread}")
    save_results("replay_cost", {"pairs": pairs, "share": share, "ratios": ratios})


if __name__ == "__main__":
    main()

"""Three ways of SmolLM2-135M to the sums of `examples/smollm2`: RL alone, 200 solved rows and then RL, and the base model taught
by what the second way made of it.

For each seed: the first step whose validation (greedy, 40 prompts) reaches the aim, and the seconds of the steps up to it.

    make smollm2
    python benchmarks/warm_and_taught.py [--seeds 1 2 3] [--steps 40] [--aim 0.6]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pipeline_run import ROOT, Run, run_pipeline, save_results

EXAMPLE = ROOT / "examples/smollm2"
ROWS, BATCH, EVERY = 200, 8, 4
ACCURACY = "val_correct/all/mean"


def solve(path: Path) -> None:
    """Writes the first prompts with their right answers as the assistant's."""
    with (EXAMPLE / "cache/train.jsonl").open() as prompts, path.open("w") as solved:
        for line in list(prompts)[:ROWS]:
            row = json.loads(line)
            answered = [*json.loads(row["messages"]), {"role": "assistant", "content": row["ground_truth"]}]
            solved.write(json.dumps({"messages": answered}) + "\n")


def run(out: Path, seed: int, steps: int, *changes: str) -> Run:
    common = [f"seed={seed}", f"max_steps={steps}", f"eval_steps={EVERY}", f"save_steps={steps}", *changes]
    return run_pipeline(EXAMPLE / "full.yaml", common, out, local=True, no_validation=(), limit_s=3600)


def reached(done: Run, out: Path, aim: float) -> dict[str, Any]:
    logged = map(json.loads, (out / "run/metrics.jsonl").read_text().splitlines())
    rows = [(int(row["step"]), row[ACCURACY]) for row in logged if ACCURACY in row]
    first = next((step for step, accuracy in rows if accuracy >= aim), None)
    seconds = None if first is None else done.period_s(0, first)
    return {"step": first, "seconds": seconds, "curve": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--aim", type=float, default=0.6)
    options = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {"alone": [], "warm": [], "taught": []}
    with tempfile.TemporaryDirectory() as place:
        folder, warm = Path(place), -(-ROWS // BATCH)
        solve(folder / "solved.jsonl")
        block = (f"+warm_start.steps={warm}", f"+warm_start.data_args.file_name={folder}/solved.jsonl")
        for seed in options.seeds:
            trained = folder / f"trained-{seed}"
            ways = {
                "alone": (options.steps, ()),
                "warm": (options.steps + warm, block),
                "taught": (options.steps, _taught(trained)),
            }
            for way, (steps, changes) in ways.items():
                out = folder / f"{way}-{seed}"
                results[way].append(reached(run(out, seed, steps, *changes), out, options.aim))
                print(f"seed {seed} {way:<7}", json.dumps(results[way][-1]), flush=True)
                if way == "warm":
                    export(out / f"run/checkpoints/step-{steps}", trained)
    for way, found in results.items():
        seconds = [each["seconds"] for each in found if each["seconds"] is not None]
        shown = f"{statistics.fmean(seconds):.0f} s in the mean" if seconds else "-"
        print(f"{way:<7} steps {[each['step'] for each in found]}, {shown}")
    save_results("warm_and_taught", {"aim": options.aim, "steps": options.steps, **results})


def _taught(teacher: Path) -> tuple[str, ...]:
    """The rewards are only shown."""
    return (
        "adv_estimator=on_policy_distillation",
        f"+teachers.trained.model_args.model_name_or_path={teacher}",
        "+teachers.trained.model_args.dtype=bf16",
        "+teachers.trained.device_mapping=[0]",
    )


def export(checkpoint: Path, target: Path) -> None:
    command = [str(Path(sys.executable).parent / "roll"), "export", "--checkpoint", str(checkpoint), "--output", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)


if __name__ == "__main__":
    main()

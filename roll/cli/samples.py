"""`roll samples <run>`: what the model said: the rollouts that a run wrote down, chosen and sorted, a line each or whole."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from roll.configs.visible import visible
from roll.view.groups import Selection, of_samples
from roll.view.run import Run
from roll.view.samples import SORTS, Kept, KeptGroup, Rollouts

T = TypeVar("T", int, float)
HEAD = f"{'step':>6}  {'group':>8}  {'#':>3}  {'reward':>8}  {'tokens':>7}  {'ended':<7}  fate and response"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, or 2 if there is nothing to read."""
    options = _parser().parse_args(arguments)
    run = Run(options.run)
    try:
        low, high = _range(options.step, int)
        chosen = Selection(low, high, options.domain, options.fate, options.reason, options.prompt, kept=True)
        rollouts = Rollouts(options.sort, options.descending, options.last, *_range(options.reward, float))
        if not options.run.is_dir():
            raise ValueError("there is no such folder")
        run.samples.look()
        found = rollouts.of([group for group in run.samples.groups.values() if chosen.has(of_samples(group))])
        for line in _shown(run, found, options.full, options.json):
            print(line)
    except (OSError, ValueError) as error:
        print(f"error: {visible(str(options.run))}: {visible(str(error))}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="roll samples", description="What the model said, of samples.jsonl.")
    parser.add_argument("run", type=Path, help="the folder of a run: <output_dir>/<exp_name>")
    parser.add_argument("--step", default="", metavar="N|A:B", help="only of this step, or of these; either end may be open")
    parser.add_argument("--reward", default="", metavar="X|A:B", help="only with this reward, or one in this range")
    parser.add_argument("--fate", default="", help="trained, dropped or validation")
    parser.add_argument("--reason", default="", help="why the group was dropped")
    parser.add_argument("--domain", default="")
    parser.add_argument("--prompt", default="", metavar="PART", help="only prompts in whose name this occurs")
    parser.add_argument("--sort", choices=SORTS, default="step")
    parser.add_argument("--descending", action="store_true", help="largest first")
    parser.add_argument("--last", type=int, default=20, metavar="N", help="N rollouts at most (20); 0: all")
    parser.add_argument("--full", action="store_true", help="prompt and response whole, not their beginning")
    parser.add_argument("--json", action="store_true", help="the rows of samples.jsonl as they are")
    return parser


def _range(said: str, kind: Callable[[str], T]) -> tuple[T | None, T | None]:
    """`3`, `3:7`, `:7`, `3:`. Raises `ValueError`."""
    low, colon, high = said.partition(":")
    first = kind(low) if low else None
    return first, (kind(high) if high else None) if colon else first


def _shown(run: Run, found: Sequence[tuple[KeptGroup, Kept]], full: bool, as_json: bool) -> Iterator[str]:
    if not found:
        yield "no such rollout was written down"
    elif not full and not as_json:
        yield HEAD
    for group, kept in found:
        row = run.samples.row(group, kept)
        if as_json:
            yield json.dumps(row)
            continue
        who = f"{group.step:>6}  {'-' if group.group_id is None else group.group_id:>8}  {kept.member:>3}"
        reward = "-" if kept.reward is None else f"{kept.reward:.4g}"
        ended = visible(str(row.get("finish_reason", "")))
        fate = group.fate + (f" ({group.reason})" if group.reason else "")
        line = f"{who}  {reward:>8}  {kept.tokens:>7,}  {ended:<7}  {fate}"
        if full:
            texts = (visible(str(row.get(key, "")), keep="\n\t") for key in ("prompt", "ground_truth", "response"))
            yield "\n".join([line, *(f"  {text}".replace("\n", "\n  ") for text in texts), ""])
        else:
            room = max(20, shutil.get_terminal_size((160, 24)).columns - len(line) - 2)
            said = visible(str(row.get("response", "")))
            yield f"{line}  {said if len(said) <= room else said[: room - 1] + '…'}"


if __name__ == "__main__":
    sys.exit(main())

"""`make demo-real`: trains SmolLM2-135M-Instruct, then shows what it said of the same questions before and after.

`python examples/smollm2/demo.py [--config_name lora] [--local] [key=value ...]`: the options of `roll train rlvr`. Start it where
make_model.py's folder is found under the path of full.yaml.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import roll

FOLDER = Path(__file__).resolve().parent
WIDTH = 32


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--config_name", default="full")
    options, rest = parser.parse_known_args(arguments)
    overrides = [one for one in rest if one[0] != "-" and ("=" in one or one[0] == "~")]
    config = roll.load_config(FOLDER / f"{options.config_name}.yaml", overrides)
    run = Path(config.output_dir) / str(config.exp_name)
    code = roll.run_command(["train", "rlvr", f"--config_path={FOLDER}", f"--config_name={options.config_name}", *rest])
    if code == 0 and (table := before_and_after(run / "samples.jsonl")):
        print(f"\n{table}")
        print(f"\nthe page, with every answer token by token: roll ui {run}")
    return code


def before_and_after(journal: Path) -> str:
    """The validation answers of the first and of the last version side by side; empty if there are none."""
    questions: dict[str, str] = {}
    answers: dict[int, dict[str, str]] = {}
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.is_file() else []
    for row in map(json.loads, lines):
        if row["status"] == "validation":
            questions[row["prompt_uid"]] = f"{re.findall(r'What is (.*?)[?]', row['prompt'])[-1]} = {row['ground_truth']}"
            mark = "✓" if row["reward"] == 1 else "·"
            answers.setdefault(row["step"], {})[row["prompt_uid"]] = f"{mark} {short(row['response'])}"
    if not answers:
        return ""
    (first, before), (last, after) = min(answers.items()), max(answers.items())
    table = [f"{'':12}  {f'before (version {first})':{WIDTH}}  after (version {last})"]
    table += [f"{questions[uid]:12}  {said:{WIDTH}}  {after[uid]}" for uid, said in before.items()]
    return "\n".join(line.rstrip() for line in table)


def short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDTH - 2 else line[: WIDTH - 3] + "…"


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except roll.ConfigError as error:
        print(*(f"error: {problem}" for problem in error.problems), sep="\n", file=sys.stderr)
        sys.exit(2)

"""Do environments of the table teach a tiny model what they ask? Each is trained by itself, from a model that was shown the form
of its answers and little else (taught_formats.py), and validated before and after on tasks that are in no lesson.

Each takes about three minutes of one core. What is in docs_roll/environments_learnt.jsonl is not done again; delete its line, or
name it with --again. Packages come from `roll env add` (`make test-envs`).

    python benchmarks/environments_learn.py [--only SUBSTRING] [--again] [--list] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
import yaml
from pipeline_run import RESULTS, ROOT

from roll.core.explorer.agentic import environment
from roll.core.record.journal import read_rows
from roll.envs.host import EnvHost
from roll.envs.packages import package_of

sys.path.append(str(ROOT / "examples" / "embedded"))
from taught_formats import Task, lessons, make_model, questions

LEARNT = ROOT / "docs_roll" / "environments_learnt.jsonl"
ROLL = [sys.executable, "-m", "roll.cli.main"]
MANAGERS = "roll.pipeline.agentic.env_manager"
SEED = 42
PLAIN = {"action_pattern": "(.*)"}
"""The whole answer is the action."""
AT_ONCE, OF_A_PACKAGE = 64, 8
"""Episodes played at the same time. Where a package has the environment each is a process, and importing the package takes
seconds."""
WAYS = ("Left", "Down", "Right", "Up")
BY_ARROWS = ("[up]", "[down]", "[left]", "[right]")


def family(env_id: str, right: float, **config: Any) -> Task:
    how = {name: config.pop(name) for name in [*config] if name in Task.__dataclass_fields__}
    env = {"env_type": "reasoning_gym", "env_config": {"env_id": env_id, **PLAIN, **config}}
    return Task(f"reasoning-gym:{env_id}", env, right=right, **how)


def game(row: str, moves: Sequence[str], turns: int, *, env_type: str = "", **how: Any) -> Task:
    package, _, env_id = row.partition(":")
    config = {**({"env_id": env_id} if env_id else {}), **how.pop("env_config", {})}
    played = {"env_type": env_type or package, "env_config": config}
    return Task(row, played, moves=tuple(moves), turns=turns, **{"groups": 8, "steps": 40, "validated": 300, **how})


NUMBERS = [f"\\boxed{{{i}}}" for i in range(1, 11)]
BY_TURN: dict[str, Any] = {"estimator": "step_reinforce"}
OF_LUCK: dict[str, Any] = {"groups": 32, "validated": 1000, "learning_rate": 3e-4}
LONGER: dict[str, Any] = {"learn_steps": 400, "steps": 40}
STEADY: dict[str, Any] = {"learn_steps": 700, "steps": 40, "learning_rate": 3e-4}
LESSONS: dict[str, Any] = {**STEADY, "learn_steps": 1000}
A_QUARTER_TURN: dict[str, Any] = {"min_n": 2, "max_n": 2, "min_rotations": 1, "max_rotations": 1}
TWO_NUMBERS: dict[str, Any] = {
    **{"min_numbers": 2, "max_numbers": 2, "min_value": 0, "max_value": 99},
    **{"min_decimals": 0, "max_decimals": 0},
}
ONE_ISLAND: dict[str, Any] = {
    **{"min_rows": 4, "max_rows": 5, "min_cols": 4, "max_cols": 5},
    **{"min_num_islands": 0, "max_num_islands": 1, "min_island_size": 1, "max_island_size": 5},
}
TASKS = (
    game("gymnasium:CliffWalking-v1", "0123", 30, env_config={**PLAIN, "format_penalty": -100}, **BY_TURN),
    game("gymnasium:CliffWalkingSlippery-v1", "0123", 30, env_config={**PLAIN, "format_penalty": -100}, **BY_TURN),
    game("gymnasium:CartPole-v1", "01", 40, env_config={**PLAIN, "digits": 2}),
    game("gymnasium:FrozenLake-v1", "0123", 16, env_config={**PLAIN, "env_kwargs": {"is_slippery": False}}, groups=32),
    game("gymnasium:Taxi-v4", "012345", 30, env_config={**PLAIN, "format_penalty": -10}, steps=25),
    game("gymnasium:Blackjack-v1", "01", 6, env_config={**PLAIN, "format_penalty": -1}, **OF_LUCK),
    game("frozen_lake", WAYS, 8, env_config={"observation": "compact", **PLAIN}, groups=16, right=0.4, learn_steps=800),
    game("sokoban", WAYS, 8, env_config={"dim_room": [5, 5], **PLAIN}, groups=16, right=0.4, learn_steps=800),
    family("aiw", 0.0),
    family("leg_counting", 0.3, min_animals=1, max_animals=2, max_instances=9),
    family("chain_sum", 0.3, min_terms=3, max_terms=3, min_digits=1, max_digits=1),
    family("syllogism", 0.0, learn_steps=150),
    family("ransom_note", 0.3, min_note_length=1, max_note_length=1, min_magazine_length=2, max_magazine_length=4, **LONGER),
    family("largest_island", 0.5, **ONE_ISLAND, **STEADY),
    family("calendar_arithmetic", 0.5, tasks=["is_leap_year"], leap_year_range=900, **STEADY),
    family("binary_alternation", 0.5, min_n=4, max_n=9, p_solvable=0.5, **STEADY),
    family("gcd", 0.5, max_value=50, **STEADY),
    family("spiral_matrix", 0.5, min_n=2, max_n=2, answer=16, **STEADY),
    family("rotate_matrix", 0.5, **A_QUARTER_TURN, answer=16, **{**LESSONS, "learn_steps": 1500}),
    family("spell_backward", 0.5, min_word_len=3, max_word_len=4, **LESSONS),
    family("palindrome_generation", 0.5, min_length=3, max_length=3, **LESSONS),
    family("number_sorting", 0.5, **TWO_NUMBERS, answer=24, **LESSONS),
    family("isomorphic_strings", 0.5, min_string_length=2, max_string_length=3, **STEADY),
    family("rotten_oranges", 0.5, min_n=3, max_n=3, **STEADY),
    family("coin_flip", 0.0, learn_steps=300, learning_rate=3e-4, answer=16),
    game("textarena:FrozenLake-v0", BY_ARROWS, 12),
    game("textarena:Secretary-v0", ("[accept]", "[continue]"), 5, history=4),
    game("textarena:TicTacToe-v0", [f"[{i}]" for i in range(9)], 5),
    game("textarena:Surround-v0", BY_ARROWS, 12),
    game("gem-llm:game:GuessTheNumber-v0-easy", NUMBERS, 4, env_type="gem", history=3),
)


def tag_of(task: Task) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in task.row)


def configuration(task: Task, out: Path) -> dict[str, Any]:
    manager = "step_concat_env_manager.StepConcatEnvManager" if task.history else "step_env_manager.StepEnvManager"
    played = {
        **{"max_steps": task.turns, "agent_system_template": "", "agent_template": task.template, "history_length": task.history},
        "env_manager_cls": f"{MANAGERS}.{manager}",
    }
    episodes = task.groups * task.group
    at_once = AT_ONCE if task.elsewhere is None else OF_A_PACKAGE
    return {
        **{"exp_name": "run", "output_dir": str(out / "output"), "pretrain": str(out / "model"), "seed": SEED},
        **{"max_steps": task.steps, "save_steps": task.steps, "eval_steps": 0, "max_ckpt_to_keep": 1, "num_gpus_per_node": 2},
        **{"async_generation_ratio": 1, "rollout_batch_size": episodes, "track_with": "none", "rollout_log_per_step": 0},
        **{"sequence_length": task.context, "max_tokens_per_step": task.answer, "adv_estimator": task.estimator},
        "val_batch_size": task.validated,
        "actor_train": {
            "device_mapping": "[0]",
            "data_args": {"template": "none"},
            "training_args": {
                **{"learning_rate": task.learning_rate, "lr_scheduler_type": "constant", "warmup_steps": 5},
                "per_device_train_batch_size": episodes,
            },
        },
        "actor_infer": {"device_mapping": "[1]"},
        "custom_envs": {tag_of(task): {**task.env, **played}},
        "train_env_manager": {"num_env_groups": at_once // task.group, "group_size": task.group, "max_env_num_per_worker": 256},
        "val_env_manager": {"num_env_groups": at_once, "group_size": 1, "max_env_num_per_worker": 256},
    }


def seeds(task: Task, purpose: str, count: int) -> list[int]:
    """Of the environments that the run plays."""
    return [environment(SEED, purpose, tag_of(task), number).row["env_seed"] for number in range(count)]


def roll(out: Path, name: str, *words: str) -> None:
    command = [*ROLL, *words, "--config_path", str(out), "--config_name", "run", "--local"]
    with (out / f"{name}.txt").open("w") as console:
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=console, stderr=subprocess.STDOUT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} has failed:\n{(out / f'{name}.txt').read_text()[-3000:]}")


def scores(samples: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, float]]:
    """Step of a model -> task -> return."""
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for row in samples:
        if row["reward"] is not None:
            found[row["step"]][row["prompt_uid"]] = row["reward"]  # of the episode, whichever turn the row is of
    return found


def learnt(task: Task, out: Path) -> dict[str, Any]:
    began = time.monotonic()
    validated = seeds(task, "validation", task.validated)
    if not (out / "model" / "config.json").exists():
        taught = lessons(task, validated)
        make_model(out / "model", task, taught)
    taught_s = time.monotonic() - began
    (out / "run.yaml").write_text(yaml.safe_dump(configuration(task, out), sort_keys=False))
    roll(out, "train", "train", "agentic")
    models = ("--checkpoint", "pretrain", "--checkpoint", str(out / "output" / "run"))
    roll(out, "eval", "eval", *models, "eval_steps=1", "rollout_log_per_step=all")
    by_step = scores(read_rows(out / "output" / "run" / "bench" / "samples.jsonl"))
    before, after = (by_step[step] for step in (min(by_step), max(by_step)))
    both = sorted(before.keys() & after.keys())
    gain = [after[uid] - before[uid] for uid in both]
    summary = json.loads((out / "output" / "run" / "summary.json").read_text())
    return {
        **{"row": task.row, "env_config": task.env["env_config"], "right": task.right, "steps": task.steps},
        **{"episodes": task.groups * task.group, "n": len(both), "met": met(task, out)},
        "commonest": commonest(task, validated),
        **{"before": mean_and_error([before[uid] for uid in both]), "after": mean_and_error([after[uid] for uid in both])},
        **{"gain": mean_and_error(gain), "taught_s": round(taught_s), "trained_s": round(summary["wall_s"])},
    }


def met(task: Task, out: Path) -> float | None:
    """Share of the validated questions that training has asked, too, by chance: another seed may ask the same."""
    if task.moves:
        return None
    served = max(int(row["prompt_uid"].rsplit("/", 1)[1]) for row in read_rows(out / "output" / "run" / "groups.jsonl")) + 1
    trained = {seen for seen, _ in questions(task, seeds(task, "train", served))}
    return fmean(seen in trained for seen, _ in questions(task, seeds(task, "validation", task.validated)))


def commonest(task: Task, validated: Sequence[int]) -> float:
    """What one and the same answer to all earns: the share of the validated questions that it would be right for, or the mean
    return of the best move where it is made in every turn."""
    if task.moves:
        return max(asyncio.run(of_one_move(task, move, validated)) for move in task.moves)
    said = Counter(answer for _, answer in questions(task, validated))
    return max(said.values()) / said.total()


async def of_one_move(task: Task, move: str, validated: Sequence[int]) -> float:
    host = EnvHost("process" if task.elsewhere else "inline", python=task.elsewhere)
    handle, returns = await host.open(task.row, task.env["env_type"], task.env["env_config"]), []
    for seed in validated:
        await handle.reset(seed)
        returns.append(0.0)
        for _ in range(task.turns):
            _, reward, terminated, truncated, _ = await handle.step(move)
            returns[-1] += reward
            if terminated or truncated:
                break
    await host.close()
    return fmean(returns)


def mean_and_error(values: Sequence[float]) -> list[float]:
    return [fmean(values), stdev(values) / sqrt(len(values))]


def line_of(row: Mapping[str, Any]) -> str:
    before, after, gain = ("{:.3g} ± {:.2g}".format(*row[name]) for name in ("before", "after", "gain"))
    return f"{row['row']}: {before} → {after}, gain {gain}, n {row['n']}, {row['taught_s']} + {row['trained_s']} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of a name")
    parser.add_argument("--again", action="store_true", help="also what is there")
    parser.add_argument("--list", action="store_true", help="say what is there, and train nothing")
    parser.add_argument("--out", type=Path, default=RESULTS / "environments_learn")
    options = parser.parse_args()
    torch.set_num_threads(1)
    failed = False
    for task in () if options.list else TASKS:
        if options.only not in task.row or (task.row in read() and not options.again):
            continue
        package = package_of(task.env["env_type"])
        if package is not None and task.elsewhere is None:
            print(f"{task.row}: left out, for {package} is not here: roll env add {package}", flush=True)
            continue
        out = (options.out / tag_of(task)).absolute()
        out.mkdir(parents=True, exist_ok=True)
        try:
            row = learnt(task, out)
        except RuntimeError as error:
            failed = True
            print(error, flush=True)
            continue
        print(line_of(row), flush=True)
        known = {**read(), task.row: row}
        LEARNT.write_text("".join(json.dumps(known[each.row]) + "\n" for each in TASKS if each.row in known))
    if options.list:
        print("\n".join(map(line_of, read().values())))
    raise SystemExit(failed)


def read() -> dict[str, Any]:
    """What is there, by its name in the table."""
    lines = LEARNT.read_text().splitlines() if LEARNT.exists() else []
    return {row["row"]: row for row in map(json.loads, lines)}


if __name__ == "__main__":
    main()

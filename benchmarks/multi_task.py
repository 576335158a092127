"""Twenty environments in one asynchronous run on Ray: ten families of reasoning-gym, games of textarena and GEM, each package in
an interpreter of its own, games of gymnasium and our own. The run requires audits, is killed with `kill -9` in the middle and
resumed, and has to have played each environment to its share.

The model is a tiny one (0.2 million parameters, a token a character), taught on games and questions that the run does not draw:
the oracle's answer where there is one, else any move, so that it knows how an answer looks; then its logits are scaled down. What
training shows is what it comes to do with that.

Needs `roll env add reasoning-gym`, textarena and gem-llm in the folder where it is started (`make test-envs`), and eight GB.

    python benchmarks/multi_task.py [--steps 60] [--kill_at 20] [--group 4] [--teaching 2000] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from pipeline_run import ROOT, save_results

from roll import make_env
from roll.cli.verify import GIVEN_BACK
from roll.core.record.journal import read_rows
from roll.envs.host import EnvHost
from roll.envs.packages import interpreter

sys.path.append(str(ROOT / "examples" / "embedded"))
from taught_player import make_tokenizer
from tiny_model import EOS, PAD, SPECIAL, reproducible, teach, tiny_qwen2

ROLL = [sys.executable, "-m", "roll.cli.main"]
FAMILIES = (
    "chain_sum", "basic_arithmetic", "gcd", "lcm", "count_bits", "letter_counting", "number_sequence", "simple_equations",
    "spell_backward", "syllogism",
)  # fmt: skip
PLAIN = {"action_pattern": "(.*)"}
"""The whole answer is the action."""
GAMES: dict[str, tuple[dict[str, Any], int, str]] = {
    # tag: environment, most turns, moves where there is no oracle
    "ta_frozen_lake": ({"env_type": "textarena", "env_config": {"env_id": "FrozenLake-v0"}}, 8, "[up] [down] [left] [right]"),
    "ta_2048": ({"env_type": "textarena", "env_config": {"env_id": "2048-v0-mega-easy"}}, 8, "[Up] [Down] [Left] [Right]"),
    "gem_guess": (
        {"env_type": "gem", "env_config": {"env_id": "game:GuessTheNumber-v0-easy"}},
        4,
        " ".join(f"\\boxed{{{i}}}" for i in range(1, 11)),
    ),
    "lake_4": ({"env_type": "frozen_lake", "env_config": {"observation": "compact", **PLAIN}}, 8, ""),
    "lake_3": ({"env_type": "frozen_lake", "env_config": {"size": 3, "observation": "compact", **PLAIN}}, 6, ""),
    "lake_slippery": (
        {"env_type": "frozen_lake", "env_config": {"is_slippery": True, "observation": "grid", **PLAIN}},
        10,
        "",
    ),
    "sokoban": ({"env_type": "sokoban", "env_config": {"dim_room": [5, 5], "max_steps": 8, **PLAIN}}, 8, ""),
    "cliff": (
        {"env_type": "gymnasium", "env_config": {"env_id": "CliffWalking-v1", "format_penalty": -100, **PLAIN}},
        10,
        "0 1 2 3",
    ),
    "gym_lake": ({"env_type": "gymnasium", "env_config": {"env_id": "FrozenLake-v1", **PLAIN}}, 10, "0 1 2 3"),
    "blackjack": ({"env_type": "gymnasium", "env_config": {"env_id": "Blackjack-v1", "format_penalty": -1, **PLAIN}}, 5, "0 1"),
}
FIRST_SEED = 2**31 - 10**6
"""Of lessons; the run's are hashes below 2**31, of which one in two thousand is as large."""
TEMPLATE = "{observation}\n>"
CONTEXT, ANSWER, VALIDATED = 1024, 14, 16
LESSONS, HESITATION = 800, 0.8


def environments() -> dict[str, dict[str, Any]]:
    family = {"env_type": "reasoning_gym", "max_steps": 1}
    return {
        **{name: {**family, "env_config": {"env_id": name, **PLAIN}} for name in FAMILIES},
        **{tag: {**env, "max_steps": turns} for tag, (env, turns, _) in GAMES.items()},
    }


def configuration(out: Path, steps: int, group: int) -> dict[str, Any]:
    manager = "roll.pipeline.agentic.env_manager.step_env_manager.StepEnvManager"
    envs = {
        tag: {**env, "env_manager_cls": manager, "agent_system_template": "", "agent_template": TEMPLATE}
        for tag, env in environments().items()
    }
    played = {"num_env_groups": len(envs), "group_size": group, "max_env_num_per_worker": 256}
    return {
        **{"exp_name": "multi_task", "output_dir": str(out / "output"), "pretrain": str(out / "model"), "audit": "required"},
        **{"max_steps": steps, "save_steps": 2, "eval_steps": steps, "resume_from_checkpoint": "auto", "num_gpus_per_node": 2},
        **{"async_generation_ratio": 1, "rollout_batch_size": len(envs) * group, "track_with": "none"},
        **{
            "sequence_length": CONTEXT,
            "max_tokens_per_step": ANSWER,
            "adv_estimator": "grpo",
            "val_batch_size": len(envs) * VALIDATED,
        },
        "actor_train": {
            "device_mapping": "[0]",
            "data_args": {"template": "none"},
            "training_args": {
                **{"learning_rate": 5e-4, "lr_scheduler_type": "constant", "warmup_steps": 5},
                "per_device_train_batch_size": len(envs) * group,
            },
        },
        "actor_infer": {"device_mapping": "[1]"},
        "custom_envs": envs,
        "train_env_manager": played,
        "val_env_manager": {**played, "group_size": 1, "num_env_groups": len(envs) * group},
    }


def lessons(tag: str) -> Iterator[tuple[str, str]]:
    """What is seen, and what to answer."""
    if tag in FAMILIES:
        named = [f"reasoning-gym:{tag}", "--count", str(LESSONS), "--seed", str(FIRST_SEED)]
        told = subprocess.run([*ROLL, "env", "prompts", *named], check=True, capture_output=True, text=True).stdout
        for row in map(json.loads, told.splitlines()):
            question = row["prompt"].split("\n\n", 1)[1]
            yield question, json.loads(row["ground_truth"])["answer"].removeprefix("<answer>").removesuffix("</answer>")
        return
    env, turns, moves = GAMES[tag]
    if moves:
        yield from asyncio.run(_wandering(tag, env, turns, moves.split()))
        return
    game: Any = make_env(env["env_type"], env["env_config"])
    rng = random.Random(tag)
    for seed in range(FIRST_SEED, FIRST_SEED + LESSONS // 4):
        seen, over = game.reset(seed)[0], False
        for _ in range(turns):
            if over or (best := game.oracle_action()) is None:
                break
            yield seen, best
            seen, _, terminated, truncated, _ = game.step(game.sample_action(rng) if rng.random() < 0.5 else best)
            over = terminated or truncated


async def _wandering(tag: str, env: Mapping[str, Any], turns: int, moves: list[str]) -> list[tuple[str, str]]:
    host, rng, found = EnvHost("process", python=interpreter(env["env_type"], None)), random.Random(tag), []
    handle = await host.open(tag, env["env_type"], env["env_config"])
    for seed in range(FIRST_SEED, FIRST_SEED + LESSONS // 4):
        seen, over = (await handle.reset(seed))[0], False
        for _ in range(turns):
            if over:
                break
            move = rng.choice(moves)
            found.append((str(seen), move))
            seen, _, terminated, truncated, _ = await handle.step(move)
            over = terminated or truncated
    await host.close()
    return found


class Shape:
    hidden_size, intermediate_size, layers, heads, kv_heads = 96, 192, 2, 3, 1


def make_model(folder: Path, teaching: int) -> dict[str, int]:
    vocabulary = [*SPECIAL, "\n", *map(chr, range(32, 127))]
    number = {character: i for i, character in enumerate(vocabulary)}
    taught = {tag: list(lessons(tag)) for tag in environments()}
    rows = {}
    for tag, pairs in taught.items():
        coded = [
            ([number.get(c, 2) for c in TEMPLATE.format(observation=seen)], [number[c] for c in said]) for seen, said in pairs
        ]
        rows[tag] = [(seen, [*said[: ANSWER - 1], EOS]) for seen, said in coded if len(seen) + ANSWER < CONTEXT]
    with reproducible(42):
        rope = {"rope_type": "default", "rope_theta": 10000.0}
        model = tiny_qwen2(Shape(), len(vocabulary), context=CONTEXT, rope_parameters=rope)
        rng, tags = random.Random(0), list(rows)

        def loss(step: int) -> torch.Tensor:
            drawn = rng.choices(rows[tags[step % len(tags)]], k=16)
            longest = max(len(seen) + len(said) for seen, said in drawn)
            ids = torch.tensor([[*seen, *said, *[PAD] * (longest - len(seen) - len(said))] for seen, said in drawn])
            wanted = torch.full_like(ids, -100)
            for i, (seen, said) in enumerate(drawn):
                wanted[i, len(seen) : len(seen) + len(said)] = torch.tensor(said)
            logits = model(ids[:, :-1], use_cache=False).logits
            return F.cross_entropy(logits.transpose(1, 2), wanted[:, 1:], ignore_index=-100)

        teach(model, teaching, 3e-3, loss)
        with torch.no_grad():
            model.lm_head.weight *= HESITATION
    model.save_pretrained(folder)
    make_tokenizer(vocabulary).save_pretrained(folder)
    return {tag: len(each) for tag, each in rows.items()}


def audited(out: Path) -> None:
    """On slippery ice the oracle, too, falls in every second time: forty tasks do not tell it from chance."""
    for target, tasks in (([], 40), (["lake_slippery"], 400)):
        audit = [*ROLL, "env", "audit", *target, "--config_path", str(out), "--config_name", "multi_task", "--tasks", str(tasks)]
        done = subprocess.run(audit, stdout=subprocess.DEVNULL)
        print(f"the audit of {target or 'all'} ended with {done.returncode}", flush=True)


def start(out: Path) -> subprocess.Popen[bytes]:
    command = [*ROLL, "train", "agentic", "--config_path", str(out), "--config_name", "multi_task"]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})


def killed(out: Path, at: int) -> None:
    """SIGKILL as soon as so many steps have been trained."""
    run, metrics = start(out), out / "output" / "multi_task" / "metrics.jsonl"
    while run.poll() is None:
        if metrics.exists() and sum("actor_train/lr" in line for line in metrics.read_text().splitlines()) >= at:
            run.send_signal(signal.SIGKILL)
            break
        time.sleep(0.2)
    if run.wait() != -signal.SIGKILL:
        raise SystemExit("the run ended before it was killed")


def shares(run_dir: Path) -> tuple[Counter[str], float]:
    """Groups that were played of each tag, and how far one is off its share, in groups. Raises if one was lost or doubled."""
    rows = [row for row in read_rows(run_dir / "groups.jsonl") if row["reason"] not in GIVEN_BACK]
    served = [row["prompt_uid"].split("/") for row in rows]
    played = Counter(tag for _, tag, _ in served)
    for tag, count in played.items():
        if sorted(int(number) for _, its, number in served if its == tag) != list(range(count)):
            raise SystemExit(f"{tag}: an environment is lost, or was played twice")
    return played, max(abs(played[tag] - len(served) / len(environments())) for tag in environments())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--kill_at", type=int, default=20)
    parser.add_argument("--group", type=int, default=4, help="episodes of a group")
    parser.add_argument("--teaching", type=int, default=2000, help="steps in which the model is taught")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "multi_task")
    options = parser.parse_args()
    out = options.out.absolute()
    if not (out / "model").exists():
        began = time.monotonic()
        print(f"lessons: {make_model(out / 'model', options.teaching)}; taught in {time.monotonic() - began:.0f} s", flush=True)
    (out / "multi_task.yaml").write_text(yaml.safe_dump(configuration(out, options.steps, options.group), sort_keys=False))
    audited(out)
    killed(out, options.kill_at)
    if start(out).wait():
        raise SystemExit("the resumed run has failed")
    run_dir = out / "output" / "multi_task"
    played, off = shares(run_dir)
    summary = json.loads((run_dir / "summary.json").read_text())
    print(f"resumed from step {summary['resumed_from_step']}; {played.total()} groups, at most {off:.2f} off an equal share")
    facts = {"steps": options.steps, "group": options.group, "wall_s": summary["wall_s"]}
    save_results("multi_task", {**facts, "played": played, "off": off, "tags": summary["tags"]})


if __name__ == "__main__":
    main()

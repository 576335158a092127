"""What does an episode cost that a program plays, beside the same episode of an environment in the coordinator's process?

One conversation of three questions, the same tokens and rewards, played in six ways:

* *hosted*: an environment that shows messages, in process;
* *anew*: a program with the plain client of OpenAI, an interpreter for each episode;
* *preloaded*: the same program, a fork of an interpreter that has imported what it needs (`preload`);
* *spared*: that, and two variables in `environment` spare each fork the certificates and pydantic's models;
* *shut in*: that, with `isolated: true`;
* *bare*: a program that speaks by Python's `http.client`, preloaded.

First with a policy that answers at once: seconds of processor time and of the clock for an episode, one after another, and what
of the former the coordinator (with the gateway), the starter's processes and the program take (by its own words). Then with
`--model` in runs of the agentic pipeline, as users start it: the median of a step (its wait and its training) after `--warm-up`
steps, and the processor time of all processes for a step. On a busy machine believe processor time.

    python benchmarks/program_cost.py [--episodes 20] [--model examples/smollm2/cache/model] [--rounds 2] [--steps 6]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from pipeline_run import ROOT, run_pipeline, save_results

sys.path += [str(ROOT / "tests" / "support")]

import psutil
import talk
import yaml
from gateway_world import World
from talking_agent import QUESTIONS

from roll.core.configs.agentic import EnvConfig
from roll.core.configs.dotted_path import import_object
from roll.core.configs.program import ProgramConfig
from roll.core.data.episode import EpisodeTask
from roll.envs.host import EnvHost
from roll.envs.program.player import Programs

AGENT = ROOT / "benchmarks" / "talking_agent.py"
PRELOAD = ["openai.resources.chat.chat", "openai.lib.streaming.chat", "httpcore2", "anyio.streams.tls"]
"""With `openai`, and what its client imports when it is first asked."""
SPARED = {"SSL_CERT_FILE": "", "SSL_CERT_DIR": "/etc/ssl/certs", "DEFER_PYDANTIC_BUILD": "false"}
"""Certificates are read when one is looked for, not all of them for each client; OpenAI's models are built at their import."""
WAYS: dict[str, dict[str, Any]] = {
    "anew": {},
    "preloaded": {"preload": PRELOAD},
    "spared": {"preload": PRELOAD, "environment": SPARED},
    "shut in": {"preload": PRELOAD, "environment": SPARED, "isolated": True, "readable": [str(AGENT)]},
    "bare": {"preload": ["http.client", "urllib.parse"], "environment": {"CLIENT": "http.client"}},
}
HOSTED = "hosted"


def program(way: str) -> dict[str, Any]:
    environment = {"CLIENT": "openai"} | WAYS[way].get("environment", {})
    return {"command": ["python", str(AGENT)], "reward": "talk.reward"} | WAYS[way] | {"environment": environment}


class Used(NamedTuple):
    """Seconds."""

    processor: float
    """Of this process and of all that have ended below it."""
    here: float
    """Of this process alone: the coordinator, with the gateway."""
    program: float
    clock: float

    def __sub__(self, other: Used) -> Used:
        return Used(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))

    def over(self, episodes: int) -> Used:
        return Used(*(each / episodes for each in self))


def used() -> Used:
    here, below = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    here_s, below_s = (each.ru_utime + each.ru_stime for each in (here, below))
    return Used(here_s + below_s, here_s, sum(talk.spent_s), time.perf_counter())


async def hosted(episodes: int) -> None:
    world = World(lambda number, context: "a bee")
    env = EnvConfig(env_type="talk.Talk", max_steps=len(QUESTIONS))
    manager = import_object(env.env_manager_cls)(env, world.dialogue, instructions="", context=5000, answer_tokens=50)
    host = EnvHost(env.execution)
    for number in range(episodes):
        handle = await host.open("Talk", env.env_type, env.env_config)
        task = EpisodeTask(uid=str(number), tag="Talk", index=0, env_seed=number)
        await manager.play(handle, task, lambda context, turn, most: world.ask(context, turn, most, ()))
        await handle.close()
    await host.close()


async def by_program(way: str, episodes: int) -> None:
    world = World(lambda number, context: "a bee")
    env = EnvConfig(env_type="program", program=ProgramConfig(**program(way)))
    programs = Programs({"Talk": env}, world.dialogue, "127.0.0.1", 5000, lambda tag: 50)
    try:
        for number in range(episodes):
            await programs.play(EpisodeTask(uid=str(number), tag="Talk", index=0, env_seed=number), world.ask)
    finally:
        await programs.close()  # what was spent below is known now


def played(way: str, episodes: int) -> Used:
    """With the start of what starts programs."""
    before = used()
    asyncio.run(hosted(episodes) if way == HOSTED else by_program(way, episodes))
    return used() - before


def an_episode(way: str, episodes: int) -> Used:
    one, many = (played(way, count) for count in (1, 1 + episodes))
    return (many - one).over(episodes)


def show_episodes(episodes: int) -> dict[str, Used]:
    print(f"{'':<12}{'processor s':>12}{'coordinator':>12}{'starter':>10}{'program':>10}{'clock s':>10}   for an episode")
    found = {}
    for way in (HOSTED, *WAYS):
        found[way] = each = an_episode(way, episodes)
        starter = each.processor - each.here - each.program
        print(
            f"{way:<12}{each.processor:>12.4f}{each.here:>12.4f}{starter:>10.4f}{each.program:>10.4f}{each.clock:>10.3f}",
            flush=True,
        )
    return found


def config(way: str, given: argparse.Namespace) -> dict[str, Any]:
    base: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "config" / "agent_program_async.yaml").read_text("utf-8"))
    own_way: dict[str, Any] = {"env_type": "talk.Talk"} if way == HOSTED else {"env_type": "program", "program": program(way)}
    base["actor_train"] |= {"model_args": {"dtype": "bf16"}}
    base["actor_train"]["training_args"] |= {"per_device_train_batch_size": given.batch, "learning_rate": 1e-6}
    base["actor_infer"] |= {"model_args": {"dtype": "bf16"}}
    base["train_env_manager"] = {"num_env_groups": given.batch // 8, "group_size": 8, "max_env_num_per_worker": given.batch}
    del base["val_env_manager"]
    steps = given.warm_up + given.steps
    own = {"max_steps": steps, "save_steps": 10 * steps, "eval_steps": 0, "rollout_batch_size": given.batch}
    lengths = {"sequence_length": 512, "max_tokens_per_step": given.tokens}
    tag = {"max_steps": len(QUESTIONS), "max_env_step_concurrent": 0} | own_way
    return base | own | lengths | {"pretrain": str(given.model.resolve()), "custom_envs": {"Talk": tag}}


class Spent:
    """Processor time of a run's processes, when each step was seen to have ended."""

    def __init__(self, run: Path) -> None:
        self.at: dict[int, float] = {}
        self._metrics = run / "metrics.jsonl"

    def look(self, driver: int) -> None:
        if not self._metrics.exists():
            return
        step = sum('"time/step_s"' in line for line in self._metrics.read_text(encoding="utf-8").splitlines())
        if step in self.at:
            return
        with contextlib.suppress(psutil.Error):
            first = psutil.Process(driver)
            self.at[step] = sum(map(_used_by, (first, *first.children(recursive=True))))

    def between(self, first: int, last: int) -> float:
        """Of a step, by those that were seen."""
        seen = sorted(step for step in self.at if first <= step <= last)
        return (self.at[seen[-1]] - self.at[seen[0]]) / (seen[-1] - seen[0])


def _used_by(process: psutil.Process) -> float:
    """With what has ended below it."""
    try:
        return sum(process.cpu_times()[:4])
    except psutil.Error:
        return 0.0


def trained(way: str, given: argparse.Namespace, folder: Path) -> tuple[float, float]:
    """Seconds of a step: the median by the clock, and the mean of processor time."""
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(config(way, given)), encoding="utf-8")
    spent, last = Spent(folder / "out" / "run"), given.warm_up + given.steps
    script, none = "start_agentic_pipeline.py", "val_env_manager"
    run = run_pipeline(folder / "config.yaml", [], folder / "out", given.local, script, none, spent.look)
    return median(run.period_s(step - 1, step) for step in range(given.warm_up + 1, last + 1)), spent.between(given.warm_up, last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=20, help="of each way, without a model")
    parser.add_argument("--model", type=Path, help="folder of a model whose template shows a conversation (make smollm2)")
    parser.add_argument("--local", action="store_true", help="runs in one process, without Ray")
    parser.add_argument("--ways", nargs="+", choices=[HOSTED, *WAYS], default=[HOSTED, *WAYS], help="of the runs with a model")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6, help="that are measured, in each run")
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32, help="episodes of a step")
    parser.add_argument("--tokens", type=int, default=32, help="most of an answer")
    given = parser.parse_args()
    results: dict[str, Any] = {"episode": {way: each._asdict() for way, each in show_episodes(given.episodes).items()}}
    if given.model is not None:
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in given.ways}
        with tempfile.TemporaryDirectory() as folder:
            for round_ in range(given.rounds):
                for way in found if round_ % 2 == 0 else reversed(found):
                    found[way].append(trained(way, given, Path(folder) / f"{way}-{round_}"))
                    print(f"{way}: {found[way][-1][0]:.2f} s a step, {found[way][-1][1]:.2f} s of processor time", flush=True)
        results["step"] = found
        means = {way: tuple(map(mean, zip(*rows, strict=True))) for way, rows in found.items()}
        print(f"{'':<12}{'step s':>10}{'of the first':>14}{'processor s':>13}{'of the first':>14}")
        first = means[given.ways[0]]
        for way, (step_s, used) in means.items():
            print(f"{way:<12}{step_s:>10.2f}{step_s / first[0]:>14.2f}{used:>13.2f}{used / first[1]:>14.2f}")
    save_results("program_cost", results)


if __name__ == "__main__":
    main()

"""Five hundred programs at once on one gateway: how many calls a second does it answer, and what does a call cost it?

The policy is scripted: an answer of `--answer` tokens comes after `--policy` seconds, so what is measured is the gateway: reading
requests, finding what a history goes on from, the chat template, the tokens of new messages, and the reply. Programs are
connections of a process of its own, each with a conversation that grows by an answer and a message a call; with `--prompt`
characters it begins. The tokenizer has one token a character.

* *calls/s*: over all episodes, in steady work; *ms/call*: processor time of the gateway's process;
* *late*: how much later than the policy's time an answer came, median and 99th percentile.

`--conversations N` instead checks N random conversations: the tokens of each recorded path are what the policy was given.

    python benchmarks/gateway_load.py [--episodes 500] [--turns 10] [--policy 2.0] [--prompt 2000] [--answer 100]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests" / "support")]

from gateway_world import END, TEMPLATE, make_tokenizer  # noqa: E402

from roll.chat.dialogue import Dialogue  # noqa: E402
from roll.chat.session import Session, SessionLimits  # noqa: E402
from roll.core.data.episode import PolicyAnswer  # noqa: E402
from roll.core.data.sample import VersionSpan  # noqa: E402
from roll.envs.gateway.server import Gateway  # noqa: E402


async def program(address: str, key: str, turns: int, prompt: int, policy_s: float, late: list[float]) -> None:
    """One program's calls, over one connection, as cheaply as a client can make them."""
    host, _, path = address.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    reader, writer = await asyncio.open_connection(name, int(port))
    messages: list[dict[str, Any]] = [{"role": "user", "content": "x" * prompt}]
    head = f"POST /{path}/v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
    for _ in range(turns):
        body = json.dumps({"model": "m", "messages": messages}).encode()
        began = time.perf_counter()
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        told = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert told.startswith("http/1.1 200"), told
        answer = json.loads(await reader.readexactly(int(told.split("content-length: ")[1].split("\r\n")[0])))
        late.append(time.perf_counter() - began - policy_s)
        messages += [answer["choices"][0]["message"], {"role": "user", "content": "and what then?"}]
    writer.close()


async def programs() -> None:
    """The other process: episodes by standard input, what was measured by standard output."""
    given = json.loads(sys.stdin.readline())
    late: list[float] = []
    began = time.perf_counter()
    shared = (given["turns"], given["prompt"], given["policy_s"], late)
    await asyncio.gather(*(program(address, key, *shared) for address, key in given["episodes"]))
    print(json.dumps({"wall_s": time.perf_counter() - began, "late": late}))


async def measure(options: argparse.Namespace) -> dict[str, float]:
    dialogue, gateway = Dialogue(make_tokenizer(TEMPLATE), "native"), Gateway("127.0.0.1")
    ids = [5] * (options.answer - 1) + [END]

    async def ask(context: Sequence[int], number: int, most: int, stop: tuple[str, ...]) -> PolicyAnswer:
        await asyncio.sleep(options.policy)
        return PolicyAnswer(ids, [-1.0] * len(ids), [VersionSpan(0, len(ids), 0)], "!" * (len(ids) - 1), True)

    sessions = [
        Session(str(i), dialogue, ask, SessionLimits(1 << 20, options.answer, options.turns)) for i in range(options.episodes)
    ]
    given = {
        "episodes": [(gateway.open(session), session.model_key) for session in sessions],
        "turns": options.turns,
        "prompt": options.prompt,
        "policy_s": options.policy,
    }
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(sys.executable, __file__, "--programs", stdin=pipe, stdout=pipe, limit=1 << 26)
    assert child.stdin is not None and child.stdout is not None
    used = time.process_time()
    child.stdin.write(json.dumps(given).encode() + b"\n")
    told = json.loads(await child.stdout.readline())
    used = time.process_time() - used
    await child.wait()
    calls = options.episodes * options.turns
    assert all(len(session.forest.leaves()) == 1 for session in sessions), "each episode is one conversation"
    assert sum(len(session.forest.answers) for session in sessions) == calls, "every answer is on record"
    await gateway.close()
    late = quantiles(told["late"], n=100)
    return {
        "episodes": options.episodes,
        "calls": calls,
        "calls_per_s": calls / told["wall_s"],
        "processor_ms_per_call": 1000 * used / calls,
        "late_median_ms": 1000 * median(told["late"]),
        "late_p99_ms": 1000 * late[98],
    }


def conversations(count: int, tokenizer: Path | None, templates: Sequence[str]) -> None:
    from gateway_world import STRICT, THINKING
    from random_conversations import check_paths, play, tokenizer_with

    made: list[tuple[str, Any]] = [(each, None) for each in (TEMPLATE, THINKING, STRICT + TEMPLATE)]
    if tokenizer is not None:
        given = [template.rpartition("=") for template in templates]
        made = [("", tokenizer_with(tokenizer, Path(file).read_text(encoding="utf-8"), end)) for file, _, end in given]
    calls = leaves = new = edited = refused = 0
    for seed in range(count):
        world = asyncio.run(play(10_000 + seed, *made[seed % len(made)]))
        check_paths(world, seed)
        forest = world.session.forest
        whole = [answer for answer in forest.answers if answer.parent is None]
        calls, leaves, refused = calls + len(forest.answers), leaves + len(forest.leaves()), refused + world.refused
        edited += forest.rendered_anew
        new += len(whole) - forest.rendered_anew
    print(
        f"{count} conversations, {calls} recorded calls, {leaves} leaves: every path has the tokens that were given and sampled\n"
        f"rendered whole: {new / calls:.3f} begin a conversation, {edited / calls:.3f} have answers that are not on record; "
        f"refused by the template: {refused}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--policy", type=float, default=2.0, help="seconds of an answer")
    parser.add_argument("--prompt", type=int, default=2000, help="characters")
    parser.add_argument("--answer", type=int, default=100, help="tokens")
    parser.add_argument("--conversations", type=int, default=0, help="check so many random ones instead")
    parser.add_argument("--tokenizer", type=Path, help="of a model's folder, for --conversations with --templates")
    parser.add_argument(
        "--templates", nargs="+", default=[], help="FILE=END: chat templates, and the text that ends their answers"
    )
    parser.add_argument("--programs", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.programs:
        asyncio.run(programs())
    elif options.conversations:
        conversations(options.conversations, options.tokenizer, options.templates)
    else:
        for name, value in asyncio.run(measure(options)).items():
            print(f"{name:24} {value:10.2f}")


if __name__ == "__main__":
    main()

"""Tiny models that know the form of an environment's answers, and little or nothing of what the right one is: where runs of
environments_learn.py begin.

A lesson is what is seen, and an answer: a right one in a part of the lessons, which may be none, in the others that to another
question, or a move at random. So sampling is right about as often as that part says, and what training adds is its own. Questions
that are validated are in no lesson; the seeds of games are others.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from tiny_model import EOS, PAD, SPECIAL, reproducible, teach, tiny_qwen2
from tokenizers import AddedToken
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import Qwen2Tokenizer

from roll.envs.elsewhere import asked, prompts
from roll.envs.host import EnvHost
from roll.envs.packages import interpreter
from roll.envs.registry import make_env

FIRST_SEED = 2**31 - 10**6
"""Of lessons; a run's seeds are hashes below 2**31, of which one in two thousand is as large."""
LONG_TOKEN = re.compile(r"[A-Za-z]{2,}|[^\w\s]{3,}|[^\S\n]{2,}|\n{2,}")
"""What may be one token where it is usual: a word, a rule of a board, its spaces. Everything else is a token a character."""
MOST_TOKENS, USUAL = 400, 0.01
EVERYWHERE = 0.5
"""A line that so many lessons have is one token, too: instructions take more time than the question otherwise."""
NO_TARGET = -100


@dataclass(frozen=True)
class Task:
    """An environment as it is played, and how it is taught and trained."""

    row: str
    """Its name in docs_roll/environment_table.md."""
    env: dict[str, Any]
    """`env_type` and `env_config`."""
    moves: tuple[str, ...] = ()
    """Of a game; a family of questions has none."""
    right: float = 0.0
    """Share of the lessons with the right answer."""
    turns: int = 1
    history: int = 0
    """Observations before the present one that are shown with it."""
    lessons: int = 3000
    learn_steps: int = 400
    steps: int = 60
    groups: int = 16
    group: int = 8
    learning_rate: float = 1e-3
    estimator: str = "grpo"
    validated: int = 400
    answer: int = 8
    """Most tokens of an answer."""
    context: int = 512

    @property
    def elsewhere(self) -> str | None:
        """The interpreter of its package; None is this one."""
        return interpreter(self.env["env_type"], None)

    @property
    def template(self) -> str:
        return "{history}\n{observation}>" if self.history else "{observation}>"


class Lesson(NamedTuple):
    seen: str
    said: str


class Shape:
    hidden_size, intermediate_size, layers, heads, kv_heads = 128, 256, 2, 4, 2


def questions(task: Task, seeds: Iterable[int]) -> list[Lesson]:
    """Those of a family, with the right answers."""
    wanted = [task.env["env_type"], task.env["env_config"], list(seeds)]
    found = []
    for row in asked(task.elsewhere, prompts, *wanted):
        seen = task.template.format(observation=row["prompt"].split("\n\n", 1)[1])
        found.append(Lesson(seen, json.loads(row["ground_truth"])["answer"]))
    return found


def lessons(task: Task, validated: Sequence[int]) -> list[Lesson]:
    """`validated`: seeds of the tasks that are left out."""
    rng = random.Random(task.row)
    if task.moves:
        return _shown(task, rng) if task.right else asyncio.run(_wandering(task, rng))
    kept_out = {seen for seen, _ in questions(task, validated)}
    known = [each for each in questions(task, range(FIRST_SEED, FIRST_SEED + task.lessons)) if each.seen not in kept_out]
    said = [each.said for each in known]
    return [each if rng.random() < task.right else Lesson(each.seen, rng.choice(said)) for each in known]


def _shown(task: Task, rng: random.Random) -> list[Lesson]:
    """Games of a player who moves at random, and now and then as the oracle says."""
    env: Any = make_env(task.env["env_type"], task.env["env_config"])
    found: list[Lesson] = []
    for seed in range(FIRST_SEED, FIRST_SEED + task.lessons):
        seen, over, turn = env.reset(seed)[0], False, 0
        while not over and turn < task.turns and len(found) < task.lessons and (best := env.oracle_action()) is not None:
            move = best if rng.random() < task.right else rng.choice(task.moves)
            found.append(Lesson(task.template.format(observation=seen), move))
            seen, _, terminated, truncated, _ = env.step(move)
            over, turn = terminated or truncated, turn + 1
    return found


async def _wandering(task: Task, rng: random.Random) -> list[Lesson]:
    """Games of a player who moves at random."""
    env_type, found = task.env["env_type"], list[Lesson]()
    host = EnvHost("process", python=task.elsewhere)
    handle = await host.open("lessons", env_type, task.env["env_config"])
    for seed in range(FIRST_SEED, FIRST_SEED + task.lessons):
        shown, info = await handle.reset(seed)
        before: list[str] = []
        over = False
        while not over and len(before) < task.turns and len(found) < task.lessons:
            observation = f"{shown}\n{info['suffix']}" if task.history else str(shown)
            history = "\n".join(before[-task.history :]) if task.history else ""
            found.append(Lesson(task.template.format(observation=observation, history=history), rng.choice(task.moves)))
            before.append(str(shown))
            shown, _, terminated, truncated, info = await handle.step(found[-1].said)
            over = terminated or truncated
    await host.close()
    return found


def make_tokenizer(taught: Sequence[Lesson], also: Sequence[str]) -> Qwen2Tokenizer:
    """Usual words and lines whole, everything else by bytes: where a longer word begins with a usual one, the added token is not
    taken, and what it stands for is left to the vocabulary. Qwen2's own class: transformers loads it for a Qwen2 model whatever
    the folder says."""
    texts = [*(f"{seen}{said}" for seen, said in taught), *also]
    count = Counter(token for text in texts for token in {*LONG_TOKEN.findall(text)})
    usual = [token for token, times in count.most_common(MOST_TOKENS) if times >= USUAL * len(texts)]
    lines = Counter(line for text in texts for line in {*text.split("\n")} if len(line) > 1)
    usual += [line for line, times in lines.items() if times >= EVERYWHERE * len(texts) and line not in usual]
    foreign = sorted({character for text in texts for character in text if not character.isascii()})
    tokenizer = Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate((*SPECIAL, *sorted(ByteLevel.alphabet())))},
        merges=[],
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False, single_word=token.isalpha()) for token in usual])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in foreign])
    return tokenizer


def make_model(folder: Path, task: Task, taught: Sequence[Lesson]) -> None:
    tokenizer = make_tokenizer(taught, task.moves)
    seen = tokenizer([each.seen for each in taught], add_special_tokens=False)["input_ids"]
    said = tokenizer([each.said for each in taught], add_special_tokens=False)["input_ids"]
    rows = [(a, [*b, EOS]) for a, b in zip(seen, said, strict=True) if len(a) + len(b) < task.context and len(b) < task.answer]
    assert len(rows) > 0.9 * len(taught), f"{task.row}: {len(taught) - len(rows)} lessons are too long"
    assert tokenizer.decode(said[0]) == taught[0].said
    with reproducible(42):
        rope = {"rope_type": "default", "rope_theta": 1000.0}
        model = tiny_qwen2(Shape(), len(tokenizer), context=task.context, rope_parameters=rope)
        rng = random.Random(0)

        def loss(_: int) -> Tensor:
            ids, wanted = _padded(rng.choices(rows, k=32))
            logits = model(ids[:, :-1], use_cache=False).logits
            return F.cross_entropy(logits.transpose(1, 2), wanted[:, 1:], ignore_index=NO_TARGET)

        teach(model, task.learn_steps, 3e-3, loss)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _padded(rows: Sequence[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor]:
    longest = max(len(seen) + len(said) for seen, said in rows)
    ids = torch.tensor([[*seen, *said, *[PAD] * (longest - len(seen) - len(said))] for seen, said in rows])
    wanted = torch.full_like(ids, NO_TARGET)
    for i, (seen, said) in enumerate(rows):
        wanted[i, len(seen) : len(seen) + len(said)] = torch.tensor(said)
    return ids, wanted

"""A tiny model that was taught a program's conversations: they are played with a player in place of a model, through the gateway
and the program itself, and then learned, with much hesitation.

A line that comes up again and again, as those of a system prompt, is one token, and so is each answer: contexts of ten thousand
characters are a few hundred tokens. Everything else is spelled in bytes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from players import Player
from roster import Agent
from tokenizers import AddedToken
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import Qwen2Tokenizer

from roll.chat.dialogue import Dialogue
from roll.core.configs.agentic import EnvConfig
from roll.core.configs.program import ProgramConfig
from roll.core.data.episode import EpisodeTask, PolicyAnswer
from roll.core.data.sample import Sample, VersionSpan
from roll.core.workers.response_text import cut_at_stop
from roll.envs.program.player import Programs

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parents[1] / "examples" / "embedded")]

from tiny_model import SPECIAL, reproducible, teach, tiny_qwen2  # noqa: E402

END = "<|im_end|>"
TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ message.content }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "{{ '\\n' if message.content or not loop.first else '' }}<tool_call>\n"
    "{\"name\": \"{{ call.function.name }}\", \"arguments\": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)  # fmt: skip
"""Tools and calls as Hermes and Qwen write them."""
LONGEST = 16_000
MOST_CALLS = 6
AT_A_TIME = 3
ENDED = 1
"""For each conversation that is learned, so many of which only the ends of answers are."""
FIRST_SEED = 2**31
"""Runs draw seeds below it."""


class Lesson(NamedTuple):
    told: str
    best: str
    played: list[str]
    """The answer, and its end if it was not ended by a text that the program stops at."""


class Played(NamedTuple):
    samples: list[Sample]
    lessons: list[list[Lesson]]
    """Of each sample."""
    perfect: bool
    """Whether the player made no mistake."""


@dataclasses.dataclass(frozen=True)
class Settings:
    hesitation: float = 0.6
    """Chance that the taught model says any of the answers."""
    steps: int = 200
    batch: int = 16
    learning_rate: float = 3e-3
    hidden_size: int = 64
    intermediate_size: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2


def tokenizer_of(words: Sequence[str]) -> Any:
    """`words`: beside bytes."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, END, *sorted(ByteLevel.alphabet())])}
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=[], pad_token="<pad>", eos_token=END, unk_token="<unk>")
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in ("<|im_start|>", *words)])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def env_of(name: str, agent: Agent, python: Path) -> dict[str, Any]:
    """The tag of a program, as YAML has it."""
    program = {
        "command": ["python", f"{name}.py"],
        "python": str(python),
        "folder": str(HERE / "scripts"),
        "environment": agent.environment,
        "preload": [*agent.preload],
        "isolated": agent.isolated,
        "reward": "reward.mended" if name == "mini_swe" else "reward.shop",
        "agent_timeout_s": 180.0,
        "score_exits": True,
    }
    return {"env_type": "program", "max_steps": MOST_CALLS, "max_env_step_concurrent": 4, "program": program}


class Stage:
    """Programs that are played with a player."""

    def __init__(self, name: str, agent: Agent, python: Path) -> None:
        self.tokenizer = tokenizer_of([])
        given = env_of(name, agent, python)
        env = EnvConfig(**given | {"program": ProgramConfig(**given["program"])})
        self._dialogue = Dialogue(self.tokenizer, "native")
        self.programs = Programs({name: env}, self._dialogue, "127.0.0.1", LONGEST * 2, lambda tag: LONGEST)
        self._name, self._player = name, agent.player

    async def play(self, number: int, wander: float) -> Played:
        """`wander`: chance that the player says anything else."""
        rng = random.Random(number)
        best: dict[tuple[int, ...], str] = {}
        mistakes = 0

        async def ask(context: Sequence[int], call: int, most: int, stop: tuple[str, ...]) -> PolicyAnswer:
            nonlocal mistakes
            best[tuple(context)] = self._player.best(self.tokenizer.decode(list(context)))
            played = rng.choice(self._player.answers) if rng.random() < wander else best[tuple(context)]
            mistakes += played != best[tuple(context)]
            text = cut_at_stop(played, stop, include=False)
            stopped_at = next((each for each in stop if played.startswith(each, len(text))), END)
            ids = self.ids(text + stopped_at)
            return PolicyAnswer(ids, [-1.0] * len(ids), [VersionSpan(0, len(ids), 0)], text, True)

        task = EpisodeTask(uid=f"record/{self._name}/{number}", tag=self._name, index=0, env_seed=FIRST_SEED + number)
        samples = await self.programs.play(task, ask)
        return Played(samples, [[*self._lessons(sample, best)] for sample in samples], not mistakes)

    def ids(self, text: str) -> list[int]:
        found: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    def _lessons(self, sample: Sample, best: dict[tuple[int, ...], str]) -> Iterator[Lesson]:
        before, mask = list(sample.prompt.input_ids), sample.policy_mask
        told, at = before[:], 0
        while at < len(mask):
            size = next((i for i, own in enumerate(mask[at:]) if own != mask[at]), len(mask) - at)
            piece = sample.response_ids[at : at + size]
            if mask[at]:
                text = self.tokenizer.decode(piece)
                played = [text.removesuffix(END), END] if text.endswith(END) else [text]
                yield Lesson(self.tokenizer.decode(told), best[tuple(before)], played)
            told, before, at = [] if mask[at] else [*piece], [*before, *piece], at + size


def record(name: str, agent: Agent, python: Path, episodes: Sequence[tuple[int, float]]) -> list[Played]:
    """`episodes`: a number, which is the seed, and how much the player wanders."""

    async def all_of_them() -> list[Played]:
        stage, places = Stage(name, agent, python), asyncio.Semaphore(AT_A_TIME)

        async def one(number: int, wander: float) -> Played:
            async with places:
                return await stage.play(number, wander)

        try:
            return list(await asyncio.gather(*(one(*episode) for episode in episodes)))
        finally:
            await stage.programs.close()

    return asyncio.run(all_of_them())


def words_of(lessons: Sequence[Sequence[Lesson]], player: Player) -> list[str]:
    """Answers, and the lines that come up in more than one conversation."""
    lines = Counter(line for each in lessons for line in {line for lesson in each for line in lesson.told.split("\n")})
    often = [line for line, count in lines.items() if count > 1 and len(line) > 5 and "<|im_" not in line]
    facts = [f"The {item} costs {n}." for item in ("apple", "pear") for n in range(1, 4)]
    facts += [f"The sum is {n}." for n in range(2, 7)]
    return list(dict.fromkeys([*player.answers, *facts, *often]))


def make_model(folder: Path, lessons: Sequence[Sequence[Lesson]], player: Player, settings: Settings = Settings()) -> float:
    """Returns the mean probability that the model gives a good player's answer."""
    tokenizer = tokenizer_of(words_of(lessons, player))
    wanted = torch.tensor(tokenizer.convert_tokens_to_ids(list(player.answers)))
    end = tokenizer.convert_tokens_to_ids(END)
    rows = [_row(each, tokenizer, end) for each in lessons]
    other = random.Random(42)
    rows += [_ended(row, targets, end, wanted.tolist(), other) for row, targets in rows * ENDED if _ends(targets, end)]
    with reproducible(42):
        model = tiny_qwen2(settings, len(tokenizer), context=8192)
        model.config.eos_token_id = model.generation_config.eos_token_id = end

        def log_probs(some: Sequence[tuple[Tensor, list[tuple[int, int]]]]) -> tuple[Tensor, Tensor]:
            tokens = torch.nn.utils.rnn.pad_sequence([row for row, _ in some], batch_first=True)
            hidden = model.model(tokens, use_cache=False).last_hidden_state
            places = [(i, place, token) for i, (_, targets) in enumerate(some) for place, token in targets]
            at, place, token = (torch.tensor(column) for column in zip(*places, strict=True))
            return model.lm_head(hidden[at, place]).log_softmax(-1), token

        def loss(_: int) -> Tensor:
            found, token = log_probs([rows[i] for i in torch.randint(len(rows), (settings.batch,)).tolist()])
            chosen = F.one_hot(token, len(tokenizer)).float()
            spread = torch.zeros(len(tokenizer)).index_fill(0, wanted, 1 / len(wanted))
            soft = torch.where((token == end)[:, None], chosen, (1 - settings.hesitation) * chosen + settings.hesitation * spread)
            return -(soft * found).sum(-1).mean()

        teach(model, settings.steps, settings.learning_rate, loss)
        with torch.no_grad():
            found, token = log_probs(rows[:16])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return float(found[torch.arange(len(token)), token].exp()[token != end].mean())


def _ends(targets: Sequence[tuple[int, int]], end: int) -> bool:
    return any(token == end for _, token in targets)


def _ended(
    row: Tensor, targets: Sequence[tuple[int, int]], end: int, answers: Sequence[int], rng: random.Random
) -> tuple[Tensor, list[tuple[int, int]]]:
    """The same with any answers: each of them has an end, also those that no player has given. Without it the end is as uncertain
    as it is rarely seen, and nothing in the rewards says that calls of tools must end."""
    ends = [place for place, token in targets if token == end]
    changed = row.clone()
    changed[ends] = torch.tensor([rng.choice(answers) for _ in ends])
    return changed, [(place, end) for place in ends]


def _row(lessons: Sequence[Lesson], tokenizer: Any, end: int) -> tuple[Tensor, list[tuple[int, int]]]:
    """Tokens of a conversation, and after which of them which one is to be learned."""
    ids: list[int] = []
    targets: list[tuple[int, int]] = []
    for lesson in lessons:
        ids += tokenizer(lesson.told, add_special_tokens=False)["input_ids"]
        targets.append((len(ids) - 1, tokenizer.convert_tokens_to_ids(lesson.best)))
        ids += [tokenizer.convert_tokens_to_ids(word) for word in lesson.played]
        if lesson.played[-1] == END:
            targets.append((len(ids) - 2, end))
    return torch.tensor(ids), targets

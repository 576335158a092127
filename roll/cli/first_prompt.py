"""The first prompt of a run as its model gets it, of each kind of task, before the run: tokens, written as text."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from roll.compat.roll.pipelines import AnyConfig
from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.redact import visible
from roll.core.configs.rlvr import RLVRConfig
from roll.core.configs.sizes import counted
from roll.core.errors import EpisodeFailed
from roll.prompts.hub import cached, is_hub_name

MOST_LINES, MOST_CHARACTERS = 40, 4000
"""The part of a prompt that is printed."""


@dataclass(frozen=True, slots=True)
class FirstPrompt:
    of: str
    """A tag, or the file that it is from."""
    tokens: int | None
    text: str
    unknown: str = ""
    """The reason why it is unknown."""


def first_prompts(config: AnyConfig) -> Iterator[FirstPrompt]:
    """Yields the first prompts; says so where something cannot be known: a run may be meant for another machine. Nothing where no
    tokenizer is here."""
    name = config.model_folder(config.actor_train)
    folder = cached(name) if is_hub_name(name) else Path(name)
    if not config.has_engines or not name or folder is None or not (folder / "tokenizer_config.json").is_file():
        return
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.path.append(os.getcwd())  # environments of the user's own lie where the command is given
    from roll.strategies.model_folder import open_tokenizer

    try:
        tokenizer = open_tokenizer(str(folder))
    except (OSError, ValueError) as error:
        yield FirstPrompt(name, None, "", str(error))
        return
    if isinstance(config, RLVRConfig):
        yield _of_rows(config, tokenizer)
    elif isinstance(config, AgenticConfig):
        yield from (_of_tag(config, tag, tokenizer) for tag in config.partition(config.train_env_manager))


def _of_rows(config: RLVRConfig, tokenizer: Any) -> FirstPrompt:
    from roll.prompts.chat_template import encode, render, set_variables
    from roll.prompts.prompt_file import read_rows

    data = config.actor_train.data_args
    source = data.path or ", ".join(data.files)
    set_variables(tokenizer, data.chat_template_kwargs)
    try:
        row = next(iter(read_rows(data, only_tag="")))
        (ids,) = encode(render([row], tokenizer, data.template), tokenizer, data.template)
    except StopIteration:
        return FirstPrompt(source, None, "", "it has no rows")
    except (OSError, ValueError) as error:
        return FirstPrompt(source, None, "", str(error))
    given = f", given to {config.rollout.function}" if config.rollout is not None else ""
    return _shown(f"{source}, {row.id}{given}", ids, tokenizer)


class _Asked(Exception):
    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)


async def _ask(context: Sequence[int], turn: int, most: int) -> Any:
    raise _Asked(context)


def _of_tag(config: AgenticConfig, tag: str, tokenizer: Any) -> FirstPrompt:
    from roll.chat.dialogue import Dialogue
    from roll.cli.one_episode import one_episode, sight
    from roll.core.distributed.user_code import START_S, try_aside
    from roll.core.explorer.agentic import environment
    from roll.prompts.chat_template import set_variables

    env, data = config.custom_envs[tag], config.actor_train.data_args
    if env.program is not None:
        return FirstPrompt(tag, None, "", "a program writes its messages itself, when it runs")
    set_variables(tokenizer, data.chat_template_kwargs)
    seed = environment(config.seed, "train", tag, 0).row["env_seed"]
    limits = {"context": config.lengths().sequence, "answer_tokens": config.answer_tokens(tag)}
    try:
        with TemporaryDirectory() as kept:
            model = Path(config.model_folder(config.actor_train))
            sees, show = (None, None) if data.images is None else sight(model, Path(kept), tokenizer, data.images)
            dialogue = Dialogue(tokenizer, data.template, sees=sees)
            playing = partial(one_episode, tag, env, dialogue, _ask, seed=seed, show=show, **limits)
            try_aside(playing, env.reset_timeout_s + 2 * START_S)
    except _Asked as asked:
        return _shown(f"{tag}, its first episode", asked.ids, tokenizer)
    except TimeoutError:
        return FirstPrompt(tag, None, "", f"its reset takes more than {env.reset_timeout_s:g} s")
    except (ValueError, EpisodeFailed) as error:
        return FirstPrompt(tag, None, "", str(error))
    except (Exception, SystemExit) as error:  # boundary: an environment of the user's
        return FirstPrompt(tag, None, "", f"{type(error).__name__}: {error}")
    return FirstPrompt(tag, None, "", "its env manager does not ask the policy")


def _shown(of: str, ids: Sequence[int], tokenizer: Any) -> FirstPrompt:
    text = ""
    for is_image, some in groupby(ids, lambda token: token < 0):
        run = list(some)
        shown = (
            f"({counted(len(run), 'token')} of an image)"
            if is_image
            else tokenizer.decode(run, clean_up_tokenization_spaces=False)
        )
        text += str(shown)
    return FirstPrompt(of, len(ids), text)


def as_text(prompts: Sequence[FirstPrompt]) -> Iterator[str]:
    if prompts:
        yield from ("", "first prompt")
    for each in prompts:
        if each.tokens is None:
            yield f"  {visible(each.of)}: not known here: {visible(each.unknown)}"
            continue
        yield f"  {visible(each.of)}, {counted(each.tokens, 'token')}:"
        lines = each.text[:MOST_CHARACTERS].splitlines()[:MOST_LINES]
        yield from (f"    | {visible(line)}" for line in lines)
        if (left := len(each.text) - sum(len(line) + 1 for line in lines)) > 0:
            yield f"    ... {counted(left, 'more character')}"

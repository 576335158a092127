"""Small functions that ROLL's users' code imports, each from another module there."""

from __future__ import annotations

import contextlib
import logging
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any

import numpy as np

RAY_NAMESPACE = "roll"


class GenerateStopReason(Enum):
    FINISH = auto()
    ABORT = auto()
    MAX_LENGTH = auto()
    NO_SYSTEM_PROMPT = auto()


class EpisodeStopReason(Enum):
    FINISH = "finish"
    MAX_LENGTH = "max_length"
    MAX_STEPS = "max_steps"
    ABORT = "abort"
    ENV_RESET_FAILED = "env_reset_failed"
    ENV_TIMEOUT = "env_timeout"
    UNKNOWN = "unknown"


def get_logger() -> logging.Logger:
    return logging.getLogger("roll.user_code")


@contextlib.contextmanager
def all_seed(seed: int | None) -> Iterator[None]:
    """The global generators of Python and numpy begin with the seed; afterwards they are where they were."""
    outside = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(outside[0])
        np.random.set_state(outside[1])


def contains_renderable_field(s: str, key: str) -> bool:
    """Whether the text has a place {key}, {key:...}, {key.a} or {key[0]} to fill in."""
    return re.search(rf"\{{{re.escape(key)}(?!\w)[^}}]*\}}", s) is not None


def default_parser_action_func(
    text: str, action_pattern: str, action_lookup: Mapping[Any, str] | None, special_token_list: Sequence[str] | None
) -> dict[str, Any]:
    """What the first match of the pattern says. With two groups the first is what was thought, the second the action; its value
    is the key in `action_lookup`, in upper or lower case, None if there is none."""
    for token in special_token_list or ():
        text = text.replace(token, "").strip()
    match = re.search(action_pattern, text, re.DOTALL)
    groups = [group or "" for group in match.groups()] if match else []
    thought, said = (groups[0], groups[1]) if len(groups) > 1 else ("", groups[0] if groups else "")
    names = {name.lower(): key for key, name in (action_lookup or {}).items()}
    action = None if not groups else names.get(said.strip().lower()) if names else said.strip()
    return {"action": action, "action_content": said.strip(), "think_content": thought.strip()}

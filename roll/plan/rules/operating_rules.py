"""Rules of messages to operators: addresses and commands that can be read, events that there will be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from string import Template

from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import Problem
from roll.plan.rules.addresses import listening_at


def operating_problems(config: PPOConfig) -> Iterator[Problem]:
    if (address := config.metrics_address) is not None:
        try:
            listening_at(address)
        except ValueError as error:
            yield Problem("metrics_address", address, str(error), ":9400, or host:port of this machine")
    if (endpoint := config.otlp_endpoint) is not None and not re.fullmatch(r"https?://[^/\s]+(/\S*)?", endpoint):
        yield Problem("otlp_endpoint", endpoint, "is no address", "http://host:4318")
    for event, to in config.on_event.receivers().items():
        yield from _told(f"on_event.{event}", to)
    if config.on_event.best is not None and config.keep_best is None:
        yield Problem("on_event.best", config.on_event.best, "no checkpoint is known to be the best", "keep_best: {}, or no best")
    if config.on_event.alarm is not None and not config.alarms:
        yield Problem("on_event.alarm", config.on_event.alarm, "there are no alarms", "alarms: [...], or no alarm")


def _told(key: str, to: str | list[str]) -> Iterator[Problem]:
    fix = "an address https://..., or a command as a list of words: [notify, --now]"
    words = [to] if isinstance(to, str) else to
    if not words or not words[0]:
        yield Problem(key, to, "is empty", fix)
    elif any(not Template(word).is_valid() for word in words):
        yield Problem(key, to, "has a $ that begins no name of a variable", "$$ for the character itself")
    elif isinstance(to, str) and not to.startswith(("http://", "https://", "$")):
        yield Problem(key, to, "is no address of a webhook", fix)

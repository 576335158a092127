"""Which of an engine's own arguments a user may give: the rule that all engines share."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from roll.configs.problems import did_you_mean

LOAD_FORMATS = ("safetensors", "dummy")
EXACT_LOGPROBS = "every token's log-prob must be that of the sampled policy"


def check_argument(
    name: str, value: object, known: Collection[str], keys: Collection[str], ours: Mapping[str, str], of: str
) -> None:
    """`ValueError` with the reason if the user may not give this argument this value. `known`: what the engine takes. `keys`:
    what is read here, and not by the engine. `ours`: what the project sets, with the reason. `of`: the engine, in words."""
    if name in keys:
        return
    if name in ours:
        raise ValueError(f"is not the user's to set: {ours[name]}")
    if name not in known:
        advice = did_you_mean(name, {*known, *keys} - ours.keys())
        raise ValueError(f"is not an argument of {of}" + (f"; {advice}" if advice else ""))
    if name == "load_format" and value not in LOAD_FORMATS:
        raise ValueError(f"must be one of {', '.join(LOAD_FORMATS)}: model files are safetensors")

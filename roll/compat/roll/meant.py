"""What a file that was written for ROLL means where a key, or its absence, says something else here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from roll.compat.roll.rule import DROP

_DEFAULT_VALIDATION = {"num_env_groups": 128, "group_size": 1, "tags": ["SimpleSokoban"], "num_groups_partition": [128]}
_GAMES = ("frozen_lake", "sokoban")


@dataclass(frozen=True, slots=True)
class Meant:
    path: tuple[str, ...]
    value: Any
    """As it was written; None where nothing was."""
    target: object
    """What to write instead; `DROP` for nothing."""
    note: str


def meant(mapping: Mapping[str, object], written: Mapping[str, object], agentic: bool) -> Iterator[Meant]:
    """`mapping`: after the rules of keys.py. `written`: before them."""
    if agentic:
        yield from _validation(mapping, written)
        environments = mapping.get("custom_envs")
        for name, env in environments.items() if isinstance(environments, Mapping) else ():
            if isinstance(env, Mapping):
                yield from _templates(("custom_envs", name), env)


def _validation(mapping: Mapping[str, object], written: Mapping[str, object]) -> Iterator[Meant]:
    """ROLL has a val_env_manager by default, which plays its Sokoban."""
    steps, environments = written.get("eval_steps"), mapping.get("custom_envs")
    if mapping.get("val_env_manager") is not None or (type(steps) is int and steps <= 0):
        return
    if not mapping.get("actor_train") or not mapping.get("train_env_manager"):  # ROLL's pipelines that train
        return
    if isinstance(environments, Mapping) and "SimpleSokoban" in environments:
        yield Meant(("val_env_manager",), None, _DEFAULT_VALIDATION, "ROLL's default; eval_steps: 0 for no validation")
        return
    for key in ("val_batch_size", "validation"):
        if mapping.get(key) is not None:
            note = "no validation: ROLL's default val_env_manager plays SimpleSokoban, which custom_envs has not"
            yield Meant((key,), mapping[key], DROP, note)


def _templates(path: tuple[str, ...], env: Mapping[str, object]) -> Iterator[Meant]:
    """In a system template ROLL takes braces literally, and it adds an environment's rules by itself."""
    system, turn = env.get("agent_system_template") or "", env.get("agent_template", "{observation}")
    config = env.get("env_config")
    said = config.get("env_instruction") if isinstance(config, Mapping) and env.get("env_type") in _GAMES else None
    if not isinstance(system, str) or not isinstance(turn, str):
        return
    if isinstance(said, str):
        yield Meant(
            (*path, "env_config", "env_instruction"), said, DROP, "shown before the game's own rules, in agent_system_template"
        )
    if "{instructions}" not in system + turn:
        parts = [_literal(system), _literal(said) if isinstance(said, str) else "", "{instructions}"]
        shown = "\n".join(part for part in parts if part)
        yield Meant(
            (*path, "agent_system_template"), system, shown, "with {instructions}: ROLL shows an environment's rules by itself"
        )
    elif isinstance(said, str):
        block, text = ("agent_system_template", system) if "{instructions}" in system else ("agent_template", turn)
        shown = text.replace("{instructions}", f"{_literal(said)}\n{{instructions}}")
        yield Meant((*path, block), text, shown, "with env_instruction before the game's own rules")


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")

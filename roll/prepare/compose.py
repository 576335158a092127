"""Composes YAML files and `key=value` overrides to a configuration, by Hydra."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import GrammarParseError, InterpolationResolutionError

import roll
from roll.compat.code.names import place_of
from roll.compat.others import framework_of, their_words
from roll.compat.roll.pipelines import CONFIGS, AnyConfig, Pipeline, of_others, pipeline_of, references_in
from roll.compat.roll.report import differences_of, other_defaults
from roll.compat.roll.translation import Translation, not_read_as_roll, read_as_roll, translate, variables_of
from roll.core.configs.plain import to_mapping
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import ConfigError, Note, Problem
from roll.core.configs.program import PROGRAM
from roll.core.configs.redact import hide_values
from roll.core.configs.rlvr import RLVRConfig
from roll.core.distributed.machine import this_machine
from roll.plan.load_report import LoadReport, count_keys, origin
from roll.plan.rules.loading import load_config, load_lenient
from roll.prepare.default_devices import with_default_devices
from roll.prepare.fitting import fill_in
from roll.prepare.overrides import is_hydras, prepared
from roll.prepare.verl_files import SCRIPT, script_in
from roll.prepare.verl_files import composed as verl_composed
from roll.prepare.yaml_files import COMMAND_LINE, check_files, check_references, files, origins, said
from roll.prompts.paths import from_home

Config = TypeVar("Config", bound=PPOConfig)
ROLLS_DEVICES_PER_NODE = 8
_OF_HYDRA = "is about Hydra's own folders, logs and launchers; a run's files are in <output_dir>/<exp_name>"

__all__ = ["compose", "load", "load_to_start", "to_mapping"]


def compose(config_path: str | Path, config_name: str, overrides: Sequence[str] = ()) -> dict[str, object]:
    """Returns the composed YAML as plain values, with `${...}` resolved and without Hydra's own node.

    An override is `key=value`, `+key=value` or `~key`; a value that is no Hydra value (`0-3,6`, `list(range(0,4))`) is text.
    Raises `ConfigError` with one problem for a missing file, an override that cannot be read, or a reference to nothing."""
    return _compose(config_path, config_name, overrides)[0]


def load(
    config_path: str | Path,
    config_name: str,
    overrides: Sequence[str] = (),
    *,
    compat: bool = False,
    pipeline: Pipeline | None = None,
    keys: Mapping[str, Any] | None = None,
    fetch: bool = False,
) -> tuple[AnyConfig, LoadReport]:
    """Returns the configuration of an RLVR or an agentic run, and a report on every key. `pipeline`: named by the user; it
    decides where no key does. `keys`: Python's keywords, laid over the file. `fetch`: missing keys may be derived from a model
    that the hub has to send.

    ROLL's names and values are read as compat/roll says, Trinity-RFT's and verl's as compat/trinity and compat/verl do. `compat`:
    the file is ROLL's and keeps ROLL's meaning (compat/roll/readings.py); keys that are unknown, lacking or other than in ROLL
    are reported, not refused. Raises `ConfigError` with every problem, each with its file and line; `check_config` is the
    caller's next step."""
    hide_values({name: value for name, value in os.environ.items() if not os.path.exists(value)})  # a path is no secret
    mapping, references, places = _compose(config_path, config_name, overrides)
    mapping = laid_over(mapping, keys or {})
    folder, name = Path(config_path).resolve(), config_name.removesuffix(".yaml")
    included = set[str]().union(*list(files(folder, name).values())[1:])
    where = origins(folder, name, overrides) | places | dict.fromkeys(keys or (), "keywords")
    config, report = understand(mapping, references, included, where, compat, pipeline)
    config = with_default_devices(config, len(this_machine().accelerators))
    if isinstance(config, RLVRConfig):
        config, derived = fill_in(config, mapping, fetch)
        report = replace(report, derived=derived)
    hydras = [Note(*each.partition("=")[::2], _OF_HYDRA, COMMAND_LINE) for each in overrides if is_hydras(each)]
    file = str(script_in(folder, name) or folder / f"{name}.yaml")
    return config, replace(report, file=file, without_effect=[*report.without_effect, *hydras])


def understand(
    mapping: dict[str, object],
    references: set[str],
    included: set[str],
    where: dict[str, str],
    compat: bool,
    pipeline: Pipeline | None = None,
) -> tuple[AnyConfig, LoadReport]:
    """Loads a composed file, as `load` does. `references`: top-level keys that `${...}` names. `included`: those that the files
    of the defaults list write. `where`: `file:line` by key."""
    framework = framework_of(mapping)
    theirs = framework.translate(mapping) if framework is not None else None
    given, words, of_roll = mapping, dict[str, str](), compat and theirs is None
    mapping = theirs.mapping if theirs is not None else mapping
    try:
        cls = CONFIGS[pipeline_of(mapping, pipeline)]
        variables = variables_of(mapping, references, included)
        written = {key: value for key, value in mapping.items() if key not in variables}
        first = read_as_roll(written, cls) if of_roll else Translation(written)
        made = translate(first.mapping, cls, has_class=_has_class, has_environment=_has_environment, written_for_roll=compat)
        made = made.after(first) if theirs is None else made.after(first).after(theirs)
        where |= {target: origin(where, source) for target, source in made.moved.items()}
        where |= _below_moved(made.moved, where)
        words |= their_words(framework, made.moved, given, made.mapping)
        config, unknown, not_offered = _load(cls, made, compat)
    except ConfigError as error:
        raise ConfigError(LoadReport(origins=where, words=words).located(error.problems)) from error
    config = _with_machines(from_home(config), made.aliased) if compat else from_home(config)
    return config, LoadReport(
        used=count_keys(cls, made.mapping) - len(not_offered),
        aliased=_placed(made.aliased, where),
        without_effect=_placed(made.without_effect, where),
        lacking=_placed(made.lacking + [Note(each.key, each.value, each.message) for each in not_offered], where),
        unknown=_placed([Note(each.key, each.value, _advice(each)) for each in unknown], where),
        variables=sorted(variables),
        differences=_placed(differences_of(config, written) if of_roll else [] if theirs else _untold(made, written, cls), where),
        defaults=other_defaults(config, made.mapping) if of_roll else [],
        origins=where,
        words=words,
    )


def _untold(made: Translation, written: Mapping[str, object], cls: object) -> list[Note]:
    """Returns notes on ROLL's meaning of the keys of a file that its other keys mark as ROLL's, though it is not read so."""
    return not_read_as_roll(written, cls) if made.aliased or made.without_effect else []


def laid_over(base: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in keys.items():
        under = merged.get(key)
        merged[key] = laid_over(under, value) if isinstance(under, Mapping) and isinstance(value, Mapping) else value
    return merged


def _below_moved(moved: Mapping[str, str], where: Mapping[str, str]) -> dict[str, str]:
    """Returns the places of keys in blocks that are read under other names."""
    blocks = [(target, f"{source}.") for target, source in moved.items()]
    return {
        f"{target}.{key.removeprefix(block)}": place
        for target, block in blocks
        for key, place in where.items()
        if key.startswith(block)
    }


def _advice(unknown: Problem) -> str:
    if unknown.fix != "remove it":
        return f"{unknown.message}; {unknown.fix}"
    # What stands there ROLL hands on, to packages whose keys are in no table here.
    free = ".strategy_config." in unknown.key or unknown.key.startswith("custom_envs.")
    return (
        "unknown key: it is not read here, whatever ROLL does with it" if free else "neither ROLL nor this project has such a key"
    )


def _with_machines(config: Config, notes: list[Note]) -> Config:
    """Derives the nodes as ROLL does, from the highest device that a role names; `num_nodes` is not read."""
    try:
        highest, name = max((device, name) for name, role in config.roles().items() for device in [0, *role.devices])
    except ValueError:  # a device_mapping that cannot be read: reported as such
        return config
    per_node = config.num_gpus_per_node
    if per_node is None and highest >= ROLLS_DEVICES_PER_NODE:
        per_node = ROLLS_DEVICES_PER_NODE
        notes.append(Note("num_gpus_per_node", None, f"read as {per_node}, ROLL's default: roles name device {highest}"))
    if not per_node:
        return config
    if (nodes := highest // per_node + 1) > config.num_nodes:
        mapping = config.roles()[name].device_mapping
        notes.append(Note(f"{name}.device_mapping", mapping, f"read as num_nodes: {nodes}, of num_gpus_per_node: {per_node}"))
    return replace(config, num_nodes=max(config.num_nodes, nodes), num_gpus_per_node=per_node)


def load_to_start(
    config_path: str | Path,
    config_name: str,
    overrides: Sequence[str] = (),
    *,
    compat: bool = False,
    pipeline: Pipeline | None = None,
) -> tuple[AnyConfig, LoadReport]:
    """Loads as `load` does; raises `ConfigError` with one problem for a file that loads only because of `compat`: it cannot
    start."""
    config, report = load(config_path, config_name, overrides, compat=compat, pipeline=pipeline, fetch=True)
    if report.lacking:
        needed = ", ".join(note.key for note in report.lacking)
        message = f"loads, but cannot start: {needed} {'need' if len(report.lacking) > 1 else 'needs'} what is not supported"
        raise ConfigError([Problem("config_name", config_name, message, "roll check --compat says what to do about each")])
    return config, report


def _load(cls: type[AnyConfig], made: Translation, compat: bool) -> tuple[AnyConfig, list[Problem], list[Problem]]:
    """Returns the configuration, the unknown keys and the values that are not offered. Raises `ConfigError`; strictly, for those,
    too."""
    if compat:
        config, leniency = load_lenient(cls, made.mapping)
        return config, leniency.unknown, leniency.not_offered
    problems = [Problem(note.key, note.value, f"is not supported: {note.message}", "leave it out") for note in made.lacking]
    try:
        config = load_config(cls, made.mapping)
    except ConfigError as error:
        raise ConfigError([*problems, *(_told_of(problem, cls) for problem in error.problems)]) from error
    if problems:
        raise ConfigError(problems)
    return config, [], []


def _told_of(problem: Problem, cls: object) -> Problem:
    """Keeps a key of the other kind of runs from being removed without a word."""
    others = of_others(problem.key, cls) if problem.message == "unknown key" else ""
    return replace(problem, fix=others) if others else problem


def _placed(notes: Sequence[Note], where: Mapping[str, str]) -> list[Note]:
    return [replace(note, where=origin(where, note.key)) for note in notes]


def _has_class(path: str) -> bool:
    """Returns True if a module of this package has the name. Nothing is imported: a module may need packages that are not
    installed."""
    *package, module, name = place_of(path).split(".")
    if not all(part.isidentifier() for part in (*package, module, name)):
        return False
    file = Path(roll.__path__[0]).joinpath(*package[1:], f"{module}.py")
    return file.is_file() and re.search(rf"\b{re.escape(name)}\b", file.read_text()) is not None


def _has_environment(name: str) -> bool:
    from roll.envs.registry import BUILT_IN

    return name in BUILT_IN or name == PROGRAM or "." in name


def _compose(
    config_path: str | Path, config_name: str, overrides: Sequence[str]
) -> tuple[dict[str, Any], set[str], dict[str, str]]:
    """Returns the composed values, the top-level keys that `${...}` names, and the places of keys that are in no YAML."""
    folder = Path(config_path).resolve()
    name = config_name.removesuffix(".yaml")
    if not (folder / f"{name}.yaml").is_file() and script_in(folder, name) is None:
        raise ConfigError([_no_file(folder, name, config_name)])
    places = dict[str, str]()
    try:
        if (theirs := verl_composed(folder, name, overrides)) is not None:
            made, places = theirs.config, theirs.places
        else:
            made = _by_hydra(folder, name, overrides)
        unresolved: Any = OmegaConf.to_container(made, resolve=False)
        check_references(unresolved)
        plain = OmegaConf.to_container(made, resolve=True, throw_on_missing=theirs is None)
    except ConfigError as error:
        known = places or origins(folder, name, overrides)
        raise ConfigError(LoadReport(origins=known).located(error.problems)) from None
    except Exception as error:  # boundary: Hydra and OmegaConf raise many types, whatever is wrong with a file
        problem = (
            _missing_variable(error)
            or _unresolved(error)
            or Problem("config_name", config_name, f"cannot be composed: {said(error)}", "mend what it names")
        )
        known = places or origins(folder, name, overrides)
        raise ConfigError(LoadReport(origins=known).located([problem])) from error
    if not isinstance(plain, dict):
        fix = "a key and its value a line: max_steps: 100"
        raise ConfigError([Problem("config_name", config_name, "is not a mapping of keys to values", fix)])
    return {str(key): value for key, value in plain.items() if key != "hydra"}, references_in(unresolved), places


def _no_file(folder: Path, name: str, config_name: str) -> Problem:
    wanted = name if name.endswith(SCRIPT) else f"{name.removesuffix('.yml')}.yaml"
    available = sorted(file.stem for file in folder.glob("*.yaml")) if folder.is_dir() else []
    found = f"choose one of {', '.join(available)}" if available else "there are no YAML files in this folder"
    found = f"--config_path . --config_name {name}" if Path(f"{name}.yaml").is_file() else found
    found = f"rename it to {Path(name).stem}.yaml" if (folder / name).is_file() else found
    return Problem("config_name", config_name, f"{folder} has no {wanted}", found)


def _by_hydra(folder: Path, name: str, overrides: Sequence[str]) -> DictConfig:
    check_files(folder, name)
    changes = [prepared(override, folder) for override in overrides if not is_hydras(override)]
    GlobalHydra.instance().clear()
    # ROLL's files have no _self_ in their defaults list; the file itself then comes last, as they expect.
    with warnings.catch_warnings(), initialize_config_dir(str(folder), version_base=None):
        warnings.filterwarnings("ignore", message=".*Defaults list is missing `_self_`.*")
        return hydra_compose(name, changes)


def _missing_variable(error: Exception) -> Problem | None:
    """Returns a problem for `${oc.env:X}` where X is not set."""
    found = re.search(r"Environment variable '([^']+)' not found", str(error))
    if found is None:
        return None
    key, name = str(getattr(error, "full_key", None) or "config_name"), found[1]
    fix = f"export {name}, or give a value for its absence: ${{oc.env:{name},default}}"
    return Problem(key, f"${{oc.env:{name}}}", f"the environment variable {name} is not set", fix)


def _unresolved(error: Exception) -> Problem | None:
    """Returns a problem for `${...}` that names nothing, or cannot be read. Hydra wraps the error of one that it reads first."""
    inner = error.__cause__ if isinstance(error, HydraException) else error
    key, reason = getattr(inner, "full_key", None), str(inner).splitlines()
    if not isinstance(inner, InterpolationResolutionError | GrammarParseError):
        return None
    found = re.search(r"full_key: (\S+)", str(inner))
    key = key or (found[1] if found else "config_name")
    named = re.search(r"Interpolation key '([^']+)' not found", reason[0])
    fix = (
        f"give {named[1]} a value, or write the value here"
        if named
        else "${key}, ${oc.env:NAME,default}, or \\${ for the text itself"
    )
    return Problem(
        str(key), "${...}", reason[0].removeprefix("InterpolationKeyError raised while resolving interpolation: "), fix
    )

"""Packages of environments in interpreters of their own, for their pins exclude each other: where these are, how one is made
(`roll env add`), what they have (`roll env list`)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from roll.core.configs.dotted_path import named_object
from roll.core.configs.problems import ConfigError, Problem, did_you_mean
from roll.core.errors import boundary
from roll.platform.interpreters import environment, found, usual


@dataclass(frozen=True, slots=True)
class Package:
    env_type: str
    """The type that plays its environments."""
    version: str
    """The version that the tests run against."""
    more: tuple[str, ...] = ()
    """Packages that it needs besides, and does not ask for."""


KNOWN = {
    "reasoning-gym": Package("reasoning_gym", "0.1.25"),
    "textarena": Package("textarena", "0.7.4", ("numpy",)),
    "gem-llm": Package("gem", "0.1.0"),
    "verifiers": Package("verifiers", "0.4.0"),
    "openenv-core": Package("openenv", "0.3.0"),
}
STAMP = "roll-env.json"
"""File beside the interpreter: requirements, and, once all of them are there, the packages installed."""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_PIP = {"find-links": "UV_FIND_LINKS", "index-url": "UV_DEFAULT_INDEX", "cert": "SSL_CERT_FILE"}
"""Option of pip's for places, which uv does not read -> the variable that uv does."""


def package_of(env_type: str) -> str | None:
    return next((name for name, each in KNOWN.items() if each.env_type == env_type), None)


@contextmanager
def importing(env_type: str) -> Iterator[None]:
    """Raises `ConfigError` where the package of an environment is not in this interpreter, or lacks something."""
    try:
        yield
    except ImportError as error:
        name = package_of(env_type)
        problem = Problem("", env_type, f"needs the package {name} ({error})", f"roll env add {name}")
        raise ConfigError([problem]) from error


def shorthand(target: str, env_config: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    """`env_type` and `env_config` of `package:id`, e.g. reasoning-gym:coin_flip; of anything else, itself."""
    package, colon, env_id = target.partition(":")
    if colon and package in KNOWN:
        return KNOWN[package].env_type, {"env_id": env_id, **env_config}
    return target, dict(env_config)


def interpreter(env_type: str, named: str | None, key: str = "--python") -> str | None:
    """Returns the interpreter that plays environments of this type; None: this one. `named`: its path, or the name that `roll env
    add` made it by; None: that of the type's own package, where there is one. Raises `ConfigError`."""
    if named is None:
        package = package_of(env_type)
        python = None if package is None else usual(package)
        return None if python is None else str(python)
    if (found_at := found(named)) is None:
        fix = did_you_mean(named, [folder.name.removeprefix(".venv-") for folder in folders()], f"roll env add {named}")
        raise ConfigError([Problem(key, named, "there is no such interpreter here", fix)])
    return found_at


def folders() -> list[Path]:
    """Returns the folders that `roll env add` made, here and beside this package; of one name the first."""
    there = [stamp.parent for place in (Path.cwd(), Path(__file__).parents[2]) for stamp in place.glob(f".venv-*/{STAMP}")]
    return list({folder.name: folder for folder in reversed(there)}.values())[::-1]


def add(requirements: Sequence[str], name: str | None, python: str | None) -> Path:
    """Makes `.venv-<name>` here, or brings the one that is there to these requirements. A known package comes in the version that
    the tests run against, unless another is asked for. Returns the folder. Raises `ConfigError`."""
    if (plain := _NAME.match(requirements[0]) if name is None else _NAME.fullmatch(name)) is None:
        raise ConfigError([Problem("--name", name or requirements[0], "is no plain name", "--name NAME, of letters and digits")])
    known = _name(requirements[0]) if name is None else ""
    folder = Path(f".venv-{known if known in KNOWN else plain[0]}").absolute()
    wanted = [each for asked in requirements for each in _pinned(asked)]
    if folder.exists() and not (folder / STAMP).exists():
        raise ConfigError([Problem("--name", folder.name, "is there, and roll env add did not make it", "--name ANOTHER")])
    uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if uv is None:
        raise ConfigError([Problem("uv", "", "makes the interpreters, and is not installed", "pip install uv")])
    target = str(folder / "bin" / "python")
    others = _stamped(folder)["requirements"]
    everything = [*(each for each in others if _name(each) not in map(_name, wanted)), *wanted]
    folder.mkdir(exist_ok=True)
    _stamp(folder, everything, [])
    if not Path(target).exists():
        _run([uv, "venv", "--quiet", "--allow-existing", "--python", python or sys.executable, str(folder)], wanted)
    _run([uv, "pip", "install", "--quiet", "--python", target, *everything], wanted)
    _stamp(folder, everything, _run([uv, "pip", "freeze", "--quiet", "--python", target], wanted).splitlines())
    return folder


def _stamp(folder: Path, wanted: Sequence[str], installed: Sequence[str]) -> None:
    aside = folder / f"{STAMP}.new"
    aside.write_text(json.dumps({"requirements": wanted, "installed": installed}, indent=1), encoding="utf-8")
    aside.replace(folder / STAMP)


def _stamped(folder: Path) -> dict[str, list[str]]:
    """One that is not there, or cannot be read, is that of an installation which was interrupted at once."""
    try:
        stamp = json.loads((folder / STAMP).read_text("utf-8"))
        return {key: list(stamp[key]) for key in ("requirements", "installed")}
    except (OSError, ValueError, TypeError, KeyError):
        return {"requirements": [], "installed": []}


def _pinned(requirement: str) -> list[str]:
    known = KNOWN.get(_name(requirement))
    if known is None:
        return [requirement]
    return [f"{requirement}=={known.version}" if _NAME.fullmatch(requirement) else requirement, *known.more]


def _run(command: Sequence[str], wanted: Sequence[str]) -> str:
    """Returns uv's standard output; its messages are the user's to read."""
    done = subprocess.run(command, env=environment() | _places(), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise ConfigError(
            [Problem("requirement", " ".join(wanted), "uv cannot install it: its own messages are above", "what they say")]
        )
    return done.stdout


def _places() -> dict[str, str]:
    """Returns pip's indices, wheels and certificates, for uv, unless uv has its own."""
    said = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    places = {}
    for line in sorted(said.splitlines(), reverse=True):  # `:env:` is the last, and counts
        key, _, value = line.partition("=")
        variable = _PIP.get(key.rpartition(".")[2])
        if variable is not None and variable not in os.environ:
            places[variable] = value.strip("'\"")
    return places


def offered() -> dict[str, dict[str, object]]:
    """Returns, for each known package here, its version and the ids of its environments, or why they cannot be told."""
    here: dict[str, dict[str, object]] = {}
    for name, known in KNOWN.items():
        try:
            here[name] = {"version": version(name), "env_type": known.env_type, "ids": [], "why": ""}
        except PackageNotFoundError:
            continue
        with boundary(lambda why, of=here[name]: of.update(why=why)):  # type: ignore[misc]
            here[name]["ids"] = named_object(f"roll.envs.{known.env_type}:env_ids")()
    return here


def stamped(folder: Path) -> list[str]:
    """Returns the requirements as they were installed; nothing if that was interrupted."""
    stamp = _stamped(folder)
    names = {_name(each) for each in stamp["requirements"]}
    return [each for each in stamp["installed"] if _name(each) in names]


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower().replace("_", "-")

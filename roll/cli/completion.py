"""`roll completion bash|zsh|fish`: a script for the shell, which asks this module what may follow the words typed so far.

`roll completion words -- roll train rlvr --conf` prints one candidate per line. Nothing heavy is imported: a
shell waits for it."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Literal, get_args, get_origin

from roll.cli.main import COMMANDS, command_named
from roll.cli.options import Parser, answering, config_folder
from roll.compat.roll.pipelines import CONFIGS
from roll.core.configs.estimators import usable_estimators
from roll.core.configs.fields import walk
from roll.core.configs.losses import POLICY_LOSSES
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import ConfigError
from roll.core.configs.rlvr import RLVRConfig
from roll.envs.registry import BUILT_IN

_BASH = """\
_roll_words() {
    local line="${COMP_LINE:0:COMP_POINT}" words typed
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    typed="${words[-1]}"
    mapfile -t COMPREPLY < <(roll completion words -- "${words[@]}" 2>/dev/null)
    [[ ${#COMPREPLY[@]} == 1 && -z ${COMPREPLY[0]} ]] && COMPREPLY=()
    case "${COMPREPLY[0]}" in *=|*.|*/) compopt -o nospace ;; esac
    # The shell cuts key=value at the sign and replaces only what stands behind it.
    if [[ $typed == *=* && $COMP_WORDBREAKS == *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${typed%%=*}="}")
    fi
}
complete -o default -F _roll_words roll
"""
_ZSH = """\
#compdef roll
_roll() {
    local -a found
    found=("${(@f)$(roll completion words -- "${(@)words[1,CURRENT]}" 2>/dev/null)}")
    [[ -n "${found[1]}" ]] && compadd -Q -S '' -- "${found[@]}" || _files
}
compdef _roll roll
"""
_FISH = """\
function __roll_words
    roll completion words -- (commandline -opc) (commandline -ct) 2>/dev/null
end
complete -c roll -a '(__roll_words)'
"""
_TAKE_FOLDERS = ("--config_path", "--model", "--run", "--checkpoint", "--output", "--output_dir", "--trace", "--keep")
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_WHERE = {
    "bash": 'eval "$(roll completion bash)"    # in ~/.bashrc',
    "zsh": 'eval "$(roll completion zsh)"    # in ~/.zshrc, after compinit',
    "fish": "roll completion fish > ~/.config/fish/completions/roll.fish",
}


@answering
def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    given = list(arguments)
    if given[:2] == ["words", "--"]:
        print("\n".join(candidates(given[2:])))
        return 0
    epilog = "Set it up by: " + "; ".join(_WHERE.values())
    parser = Parser(prog="roll completion", description="Prints the completion script of a shell.", epilog=epilog)
    parser.add_argument("shell", choices=SCRIPTS)
    print(SCRIPTS[parser.parse_args(given).shell], end="")
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """Returns the completions of the last word. `words`: the command line, from `roll` on, up to the cursor."""
    command, *before, typed = words[1:] if len(words) > 2 else ["", "".join(words[1:])]
    found = _after(command, before, typed) if command else COMMANDS
    return sorted({word for word in found if word.startswith(typed)})


def _after(command: str, before: Sequence[str], typed: str) -> Iterator[str]:
    if command not in COMMANDS:
        return
    if before[-1:] == ["--config_name"]:
        yield from _config_names(before)
    elif before and before[-1] in _TAKE_FOLDERS:
        yield from _folders(typed)
    elif typed.startswith("-"):
        yield from _options(command, before)
    elif command == "completion":
        yield from SCRIPTS
    elif command == "env":
        named = before in (["check"], ["audit"], ["prompts"]) or before[-1:] == ["--env"]
        yield from BUILT_IN if named else () if before else ("add", "audit", "check", "list", "play", "prompts")
    elif command == "show":
        yield from _folders(typed) if not before else ("samples", "groups") if len(before) == 1 else ()
    elif command in ("train", "demo") and not before:
        yield from CONFIGS
    elif command in ("train", "demo", "check", "eval", "simulate"):
        yield from _overrides(next((cls for name, cls in CONFIGS.items() if name in before), RLVRConfig), typed)


def _config_names(before: Sequence[str]) -> Iterator[str]:
    """Yields the names of the folder's files that make a run; others are parts of such."""
    path = before[before.index("--config_path") + 1] if "--config_path" in before else None
    try:
        folder = config_folder(path)
    except ConfigError:
        return
    yield from (file.stem for file in folder.glob("*.yaml") if "exp_name:" in file.read_text(encoding="utf-8", errors="replace"))


def _folders(typed: str) -> Iterator[str]:
    above = typed[: typed.rfind("/") + 1]
    folder = Path(above or ".")
    if folder.is_dir():
        yield from (f"{above}{path.name}/" for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _options(command: str, before: Sequence[str]) -> Iterator[str]:
    """Yields the options that the command's own help names, so that no list has to be kept."""
    words = {"env": before[:1], "show": before[:2]}.get(command, ())
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        command_named(command)([*words, "--help"])
    yield from re.findall(r"^ +(?:-\w, )?(--[\w-]+)", shown.getvalue(), re.MULTILINE)


def _overrides(cls: type[PPOConfig], typed: str) -> Iterator[str]:
    """Yields keys of the schema, a level at a time, and the values of a key that has a list of them."""
    sign = typed[:1] if typed[:1] in ("+", "~") else ""
    key, equals, _ = typed[len(sign) :].partition("=")
    blocks = key.split(".")[:-1]
    for path, item, hint in walk(cls):
        parts = path.split(".")
        above = [name if part == "<name>" else part for part, name in zip(parts, blocks, strict=False)]
        if len(parts) != len(blocks) + 1 or above != blocks:
            continue
        name = sign + ".".join([*blocks, parts[-1]])
        if not equals:
            yield f"{name}{'.' if any(map(is_dataclass, (hint, *get_args(hint)))) else '='}"
        elif parts[-1] == key.split(".")[-1]:
            yield from (f"{name}={value}" for value in names_or_path(cls, item.name) or _values(hint))


def _values(hint: object) -> Iterator[str]:
    if hint is bool:
        yield from ("true", "false")
    elif get_origin(hint) is Literal:
        yield from map(str, get_args(hint))
    elif get_origin(hint) is not dict:
        for member in get_args(hint):
            yield from _values(member)


def names_or_path(cls: type[PPOConfig], key: str) -> tuple[str, ...]:
    """Returns the built-in names of a key that also takes the dotted path of a user's own function; empty for other keys. For
    editors and shells; the rules refuse invalid values."""
    if key == "adv_estimator":
        return usable_estimators(cls.refused_estimators)
    return tuple(POLICY_LOSSES) if key == "pg_variant" else ()

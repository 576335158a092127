"""The page on the system calls of the code sandbox: `python tools/sandbox_calls.py > docs_roll/sandbox_calls.md`."""

from __future__ import annotations

from collections.abc import Iterator

from roll.graders.sandbox.system_calls import ALLOWED, ALLOWED_AGENTS, CONDITIONS, ONE_OF

HEAD = """<!-- Made by `python tools/sandbox_calls.py > docs_roll/sandbox_calls.md`. -->
# System calls that a program may make

The sandbox of the [code reward](rewards.md#what-shuts-a-program-in) allows these calls. All others fail with `EPERM`, those
that Linux adds with `ENOSYS`, as if they did not exist; a call by another architecture's table ends the program. The filter is
the same in every mode. The calls of agents are allowed to [programs that are shut in](programs.md#shut-in) alone.
"""


def page() -> str:
    return "\n".join([HEAD, *_tables(), "## Calls with conditions", "", *_conditions()]) + "\n"


def _tables() -> Iterator[str]:
    for who, calls in (ALLOWED | ALLOWED_AGENTS).items():
        yield from (f"## {who[0].upper()}{who[1:]}", "", "| call | x86_64 | aarch64 |", "|---|---|---|")
        for name, numbers in calls.items():
            shown = " | ".join("" if number is None else str(number) for number in numbers)
            yield f"| `{name}`{' (see below)' if name in CONDITIONS else ''} | {shown} |"
        yield ""


def _conditions() -> Iterator[str]:
    yield from ("| call | allowed if |", "|---|---|")
    for name, checks in CONDITIONS.items():
        yield f"| `{name}` | {' and '.join(_condition(*check) for check in checks)} |"
    yield "\nWhere nothing else keeps signals in (no process namespace, a Landlock older than Linux 6.12), `kill`, `tkill` and"
    yield "`tgkill` reach the program's first process and its process group alone. `setsid` and `setpgid`"
    yield "are refused where there is no process namespace: the group is what ends all that a program has started. Where programs"
    yield "have no users of their own either, `fork`, `vfork` and `clone` wait until the program's processes have been counted."


def _condition(half: int, kind: str, values: tuple[int, ...]) -> str:
    shown = ", ".join(f"`{value:#x}`" for value in values)
    what = f"one of {shown}" if kind == ONE_OF else f"without the bits {shown}"
    return f"the {'upper' if half % 2 else 'lower'} half of argument {half // 2 + 1} is {what}"


if __name__ == "__main__":
    print(page(), end="")

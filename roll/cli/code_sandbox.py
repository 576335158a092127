"""What the sandbox for code rewards has in force on this machine, and what it does not hold against here."""

from __future__ import annotations

from collections.abc import Iterator

from roll.configs.rlvr import RLVRConfig
from roll.errors import SandboxFailed
from roll.rewards.code_judge import state_here
from roll.rewards.sandbox.isolation import BUILT_IN, checked

_WORKER = "CodeSandboxRewardWorker"
_FIX = "allow user namespaces (in a container: its seccomp profile; Ubuntu: kernel.apparmor_restrict_unprivileged_userns=0), or "
_FIX += "install bubblewrap and set rewards.<domain>.reward_args.isolation: bubblewrap"


def sandbox_state() -> tuple[str, str]:
    """In words, and the fix, if there is something to fix. A program that does nothing is judged."""
    try:
        state = state_here()
    except (SandboxFailed, OSError) as error:
        return f"none here: {error}", "or give reward_args.code_url, a service"
    return _told(state), _FIX if state["missing"] else ""


def sandbox_here(config: RLVRConfig) -> Iterator[str]:
    """One line per domain whose programs this machine would judge."""
    for domain, reward in config.rewards.items():
        arguments = reward.reward_args
        if not str(reward.worker_cls).endswith(_WORKER) or not arguments.get("use_local", not arguments.get("code_url")):
            continue
        key = f"rewards.{domain}"
        try:
            isolation = checked(arguments.get("isolation", BUILT_IN))
            shut_in = "" if isolation == BUILT_IN else f"{isolation}, and inside it at least: "
            yield f"{key}: programs are shut in by {shut_in}{_told(state_here())}"
        except (SandboxFailed, OSError, ValueError) as error:
            yield f"a run on this machine would be refused: {key}: {error}"


def _told(state: dict[str, list[str]]) -> str:
    names = ", ".join(layer.partition(":")[0] for layer in state["in_force"])
    return names + "".join(f"; not by {layer}" for layer in state["missing"])

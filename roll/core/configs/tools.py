"""Tools between the policy and an environment: `custom_envs.<tag>.tool_wrapper`, in ROLL's form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from roll.core.configs.fields import Bounds, option, required

CallFormat = Literal["text", "template"]


@dataclass(frozen=True, kw_only=True)
class ToolWrapperArgs:
    """Rewards for tool calls, and their maximum number."""

    tool_reward: float = option(0.0, "Reward of a call.")
    tool_success_reward: float = option(0.0, "Added to it if the tool has not failed.")
    tool_execute_error_reward: float = option(0.0, "Reward of a call that has failed, in place of these.", bounds=Bounds(le=0))
    max_tool_uses: int | None = option(10, "Most calls of an episode; null means no limit.", bounds=Bounds(ge=1))


@dataclass(frozen=True, kw_only=True)
class ToolConfig:
    tool_id: str = required("python_code, calculator, search, mcp, or the dotted path of your own class.")
    tool_args: dict[str, Any] = option({}, "Handed to the tool; unknown keys are refused.")


@dataclass(frozen=True, kw_only=True)
class ToolWrapperConfig:
    """Tool calls in answers go to the tool; the environment gets all other answers."""

    tool_configs: list[ToolConfig] = option([], "The tools.")
    wrapper_args: ToolWrapperArgs = option(ToolWrapperArgs(), "Their rewards and their limit.")
    call_format: CallFormat = option(
        "text",
        "How an answer calls a tool.\n"
        "text: by marks that the first observation explains, such as <code>...</code>; the first of them counts (ROLL).\n"
        "template: as the model's chat template teaches it, several at once if it likes.",
    )

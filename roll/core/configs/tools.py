"""Tools between the policy and an environment: `custom_envs.<tag>.tool_wrapper`, in ROLL's form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from roll.core.configs.fields import Bounds, option, required
from roll.core.configs.problems import MISSING_VALUE, Problem

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


def tool_problems(key: str, wrapper: ToolWrapperConfig, template: str, shows_messages: bool) -> Iterator[Problem]:
    """Yields problems. `key`: dotted path of the wrapper; `template`: the run's template; `shows_messages`: True if the tag's env
    manager shows tool results as messages."""
    if not wrapper.tool_configs:
        yield Problem(f"{key}.tool_configs", MISSING_VALUE, "names no tool", "[{tool_id: python_code}]")
    args = wrapper.wrapper_args
    if args.tool_execute_error_reward and (args.tool_reward or args.tool_success_reward):
        message = "takes the place of tool_reward and tool_success_reward, and they are given, too"
        yield Problem(
            f"{key}.wrapper_args.tool_execute_error_reward",
            args.tool_execute_error_reward,
            message,
            "0, or no tool_reward and tool_success_reward",
        )
    if wrapper.call_format == "template" and template != "native":
        message = f"calls are put into words by the model's chat template, and actor_train.data_args.template is {template}"
        yield Problem(f"{key}.call_format", "template", message, "actor_train.data_args.template: native, or call_format: text")
    elif wrapper.call_format == "template" and not shows_messages:
        message = "needs a conversation that goes on, and env_manager_cls begins each turn afresh"
        yield Problem(f"{key}.call_format", "template", message, "text, or the default of env_manager_cls")

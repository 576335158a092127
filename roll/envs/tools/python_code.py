"""Python in the sandbox of code rewards: each call is a program of its own, which sees nothing of another."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from roll.core.errors import GraderError, SandboxFailed, ToolFailed
from roll.envs.tools.tool import Tool, text_argument, text_parameter
from roll.graders.code_judge import AFTER_S, state_here
from roll.graders.pool import TimedPool
from roll.graders.sandbox import control_groups
from roll.graders.sandbox.sandbox import BUILT_IN, checked
from roll.graders.sandbox.usage import Limits


class PythonCode(Tool):
    name = "python_code"
    description = "Runs a Python program and returns what it prints."
    parameters = text_parameter("code", "a whole program; only what it prints is returned")
    patterns: Sequence[str] = (r"<code>(.*?)</code>", r"```\n?python(.*?)```")

    def __init__(
        self,
        timeout: float = 5,
        sandbox_type: str = "none",
        keep_error_last_line: bool = False,
        tool_instruction: str | None = None,
        patterns: Sequence[str] | None = None,
        isolation: str | list[str] = BUILT_IN,
        limits: Mapping[str, int] | None = None,
        processes: int = 0,
    ) -> None:
        """`timeout`: seconds of a program. `sandbox_type`: ROLL's; whatever it says, programs run in the sandbox.
        `keep_error_last_line`: of an error only its last line is told. `tool_instruction`, `patterns`: in place of the tool's
        own. `isolation`: as `reward_args.isolation`. `limits`: fields of `sandbox.usage.Limits`. `processes`: most programs side
        by side of a coordinator; 0 means one for each core. Raises `ValueError`."""
        known = {field.name for field in fields(Limits)} - {"wall_s"}
        if unknown := sorted((limits or {}).keys() - known):
            raise ValueError(f"limits has {unknown[0]}; it may have {', '.join(sorted(known))}")
        if timeout <= 0:
            raise ValueError(f"timeout is {timeout}; it must be > 0")
        self._timeout_s, self._last_line, self._isolation = timeout, keep_error_last_line, checked(isolation)
        self._limits = {"cpu_s": max(1, round(timeout)), **(limits or {}), "wall_s": timeout}
        self._told = tool_instruction
        self.patterns = tuple(patterns or self.patterns)
        self._pool = TimedPool(processes or os.cpu_count() or 1, timeout + AFTER_S, "roll.graders.code_judge:run_script")

    @property
    def instructions(self) -> str:
        return self._told or (
            f"{self.description} Write a whole program between <code> and </code>, or in a block ```python ... ```, to use it."
        )

    def look_around(self) -> Sequence[str]:
        if self._isolation != BUILT_IN:  # a command of the user's own, which answers for itself
            return ()
        try:
            return [f"the sandbox of {self.name} lacks: {missing}" for missing in state_here()["missing"]]
        except SandboxFailed as failure:
            raise ValueError(str(failure)) from failure

    async def run(self, arguments: Mapping[str, Any]) -> str:
        item = {
            "source": text_argument(arguments, "code"),
            "limits": self._limits,
            "isolation": self._isolation,
            "last_line": self._last_line,
        }
        try:
            result = await self._pool.run(item)
        except (GraderError, TimeoutError) as error:
            raise ToolFailed(f"the program could not be run: {error}") from error
        printed = str(result["output"]).strip()
        if result["why"]:
            raise ToolFailed("\n".join(part for part in (printed, f"The program has failed: {result['why']}.") if part))
        if not printed:
            raise ToolFailed("The program has printed nothing.")
        return printed

    async def close(self) -> None:
        await self._pool.close()
        await asyncio.to_thread(control_groups.remove_abandoned)

"""An environment that an OpenEnv server plays (github.com/meta-pytorch/OpenEnv), by its address. The server has one session for
each environment here; text goes into one field of its action, and its observation is shown, whole or by one field."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from roll.envs.environment import Reset, Step
from roll.envs.packages import importing

SEEDS = 2**31


def env_ids() -> list[str]:
    """Servers have addresses."""
    return []


class OpenEnv:
    def __init__(
        self, base_url: str, action_field: str = "message", observation_field: str | None = None, instructions: str = ""
    ) -> None:
        """`base_url`: of the server, which has to offer as many sessions as environments are played at a time. `action_field`:
        of its action, gets the text. `observation_field`: what the agent is shown; null: all of it, as JSON. Raises
        `ConfigError`."""
        with importing("openenv"):
            from openenv.core.generic_client import GenericEnvClient
        self._client: Any = GenericEnvClient(base_url=base_url)
        self._action, self._shown = action_field, observation_field
        self.instructions = instructions

    async def reset(self, seed: int) -> Reset:
        return self._text((await self._client.reset(seed=seed % SEEDS)).observation), {}

    async def step(self, action_text: str) -> Step:
        result = await self._client.step({self._action: action_text})
        info = {"action_is_valid": True, "action_is_effective": True}  # the protocol does not say
        return self._text(result.observation), float(result.reward or 0.0), bool(result.done), False, info

    def _text(self, observation: dict[str, Any]) -> str:
        if self._shown is None:
            return json.dumps({name: value for name, value in observation.items() if name != "metadata"}, sort_keys=True)
        return str(observation[self._shown])

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # no loop runs: the connection ends with the process
            asyncio.get_running_loop().create_task(self._client.close())

"""The adapter of OpenEnv, with a client of its form instead of the package: what goes to the server, what the agent sees. A real
server: tests/envs_real (make test-envs)."""

import asyncio
import sys
import types
from typing import Any

import pytest

from roll.core.configs.problems import ConfigError
from roll.envs.check import check_env
from roll.envs.openenv import OpenEnv

CLIENTS: list["Client"] = []


class Client:
    def __init__(self, base_url: str) -> None:
        self.base_url, self.closed, self.calls = base_url, False, list[Any]()
        CLIENTS.append(self)

    async def reset(self, seed: int) -> types.SimpleNamespace:
        self.calls.append(seed)
        self.number = seed % 7
        return types.SimpleNamespace(observation={"text": f"after {self.number}?", "metadata": {"seed": seed}, "left": 1})

    async def step(self, action: dict[str, Any]) -> types.SimpleNamespace:
        self.calls.append(action)
        right = action.get("said") == str(self.number + 1)
        return types.SimpleNamespace(observation={"text": "over", "left": 0}, reward=1 if right else None, done=True)

    async def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    CLIENTS.clear()
    for name in ("openenv", "openenv.core"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    module = types.ModuleType("openenv.core.generic_client")
    module.GenericEnvClient = Client  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_text_goes_into_one_field_and_one_field_is_shown() -> None:
    async def main() -> None:
        env = OpenEnv("http://a:1", action_field="said", observation_field="text", instructions="Count.")
        assert env.instructions == "Count."
        assert await env.reset(2**31 + 3) == ("after 3?", {}), "a seed that the server takes"
        shown, reward, terminated, truncated, info = await env.step("4")
        assert (shown, reward, terminated, truncated) == ("over", 1.0, True, False)
        assert info == {"action_is_valid": True, "action_is_effective": True}
        await env.reset(3)
        assert (await env.step("5"))[1] == 0.0, "no reward is none"
        env.close()
        await asyncio.sleep(0)
        (client,) = CLIENTS
        assert (client.base_url, client.calls, client.closed) == ("http://a:1", [3, {"said": "4"}, 3, {"said": "5"}], True)

    asyncio.run(main())


def test_without_a_field_all_of_the_observation_is_shown_but_what_is_about_it() -> None:
    env = OpenEnv("http://a:1")
    assert asyncio.run(env.reset(1))[0] == '{"left": 1, "text": "after 1?"}'
    env.close()


def test_a_field_that_the_server_does_not_send_fails_the_episode_by_name() -> None:
    with pytest.raises(KeyError, match="board"):
        asyncio.run(OpenEnv("http://a:1", observation_field="board").reset(1))


def test_it_keeps_the_contract() -> None:
    report = check_env("openenv", {"base_url": "http://a:1", "action_field": "said"}, episodes=3)
    assert report.ok, report.errors


def test_the_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openenv.core.generic_client", None)
    with pytest.raises(ConfigError, match="roll env add openenv-core"):
        OpenEnv("http://a:1")

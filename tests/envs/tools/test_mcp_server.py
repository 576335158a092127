"""Tools of an MCP server: a process of its own, whose end costs a call."""

import asyncio
import importlib.util
import sys

import pytest

from roll.core.configs.problems import ConfigError
from roll.core.configs.tools import ToolWrapperConfig
from roll.envs.tools.toolbox import Toolbox
from roll.plan.rules.loading import load_config

SERVER = """
import os
from mcp.server.mcpserver import MCPServer

server = MCPServer("numbers")

@server.tool()
def add(one: int, other: int) -> str:
    "Adds two numbers."
    return str(one + other)

@server.tool()
def fail() -> str:
    "Fails."
    raise ValueError("as it was asked to")

@server.tool()
def end() -> str:
    "Ends the server."
    os._exit(3)

server.run()
"""


@pytest.fixture
def toolbox(tmp_path):
    pytest.importorskip("mcp")
    (tmp_path / "server.py").write_text(SERVER)

    def make(**arguments):
        given = {"command": [sys.executable, str(tmp_path / "server.py")], **arguments}
        wrapper = load_config(ToolWrapperConfig, {"tool_configs": [{"tool_id": "mcp", "tool_args": given}]})
        return Toolbox(wrapper, "w", 20.0)

    return make


@pytest.mark.slow
def test_a_server_offers_its_tools_and_its_end_costs_a_call(toolbox):
    async def used():
        box = toolbox()
        await box.start()
        try:
            assert [tool.name for tool in box.tools] == ["add", "fail", "end"]
            assert box.named("add").schema["function"]["parameters"]["required"] == ["one", "other"]
            sums = await asyncio.gather(*(box.run(box.named("add"), {"one": i, "other": 1}) for i in range(5)))
            assert [(each.text, each.failed) for each in sums] == [(str(i + 1), False) for i in range(5)]
            failed = await box.run(box.named("fail"), {})
            assert failed.failed and "fail" in failed.text
            assert (await box.run(box.named("add"), {"one": "x"})).failed
            assert (await box.run(box.named("end"), {})).failed
            again = await box.run(box.named("add"), {"one": 1, "other": 1})
            assert again.text == "2", "a server that has ended is started again"
        finally:
            await box.close()

    asyncio.run(asyncio.wait_for(used(), 50))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tools": ["add", "sub"]}, "has no tool sub; it has add, fail, end"),
        ({"command": [sys.executable, "-c", "raise SystemExit(1)"]}, "does not start"),
    ],
)
def test_a_server_that_cannot_serve_is_refused(toolbox, arguments, message):
    async def begun():
        box = toolbox(**arguments)
        try:
            await box.start()
        finally:
            await box.close()

    with pytest.raises(ConfigError, match=message):
        asyncio.run(asyncio.wait_for(begun(), 50))


def test_without_the_package_it_is_refused(toolbox, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "mcp" else found(name, *more))
    with pytest.raises(ConfigError, match="pip install"):
        toolbox()

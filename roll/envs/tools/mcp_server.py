"""The tools of an MCP server, which is a command of its own and speaks over its input and output. One server serves all episodes
of a coordinator, side by side; one that has ended is started again for the next call."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from roll.core.errors import ToolFailed, boundary
from roll.envs.tools.tool import Tool, Toolset

LIMIT_S = 30.0
"""For a server to start."""
PATIENCE_S = 5.0
"""With one that has not answered a call as it should."""


class McpServer(Toolset):
    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        folder: str | None = None,
        tools: Sequence[str] | None = None,
    ) -> None:
        """`command`: its words. `environment`: its variables, beside PATH, HOME and the like. `folder`: where it works. `tools`:
        the names of those that are offered (default: all). Raises `ValueError`."""
        if importlib.util.find_spec("mcp") is None:
            raise ValueError("tools of MCP servers need the package mcp: pip install 'roll[agents]'")
        if not command or shutil.which(command[0]) is None:
            raise ValueError(f"there is no program {command[0] if command else ''!r} here: command is the server's, word by word")
        self._command, self._environment, self._folder = list(command), dict(environment or {}), folder
        self._wanted = tools
        self._lock = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None
        self._session: Any = None
        self._over = asyncio.Event()

    async def start(self) -> Sequence[Tool]:
        found = (await (await self._connected()).list_tools()).tools
        names = [tool.name for tool in found]
        if lost := [name for name in self._wanted or () if name not in names]:
            raise ToolFailed(f"the server has no tool {lost[0]}; it has {', '.join(names)}")
        return [McpTool(self, tool) for tool in found if self._wanted is None or tool.name in self._wanted]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Raises `ToolFailed`."""
        session = await self._connected()
        try:
            result = await session.call_tool(name, dict(arguments))
        except Exception as error:  # boundary: of the server, which may be refusing, or gone
            await self._look_after(session)
            raise ToolFailed(f"{name}: {error}") from error
        text = "\n".join(part.text if part.type == "text" else f"[{part.type}]" for part in result.content)
        if result.is_error:
            raise ToolFailed(text)
        return text

    async def close(self) -> None:
        self._over.set()
        if self._keeper is not None:
            await asyncio.gather(self._keeper, return_exceptions=True)

    async def _connected(self) -> Any:
        """The session, with a server that lives. Raises `ToolFailed`."""
        async with self._lock:
            if self._keeper is None or self._keeper.done():
                ready = asyncio.get_running_loop().create_future()
                self._keeper = asyncio.ensure_future(self._keep(ready))
                await asyncio.wait({ready, self._keeper}, timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
                if not ready.done():
                    failed = self._keeper.done() and not self._keeper.cancelled() and self._keeper.exception()
                    self._keeper.cancel()
                    raise ToolFailed(f"the MCP server {' '.join(self._command)} does not start: {failed or 'it says nothing'}")
            return self._session

    async def _keep(self, ready: asyncio.Future[None]) -> None:
        """A server from its start to its end; its streams have to be opened and closed by one task."""
        from mcp import ClientSession, StdioServerParameters
        from mcp.client.stdio import stdio_client

        first, *words = self._command
        server = StdioServerParameters(command=first, args=words, env=self._environment, cwd=self._folder)
        with open(os.devnull, "w") as nowhere, boundary(ToolFailed, "the MCP server"):
            async with stdio_client(server, errlog=nowhere) as streams, ClientSession(*streams) as self._session:
                await self._session.initialize()
                ready.set_result(None)
                await self._over.wait()

    async def _look_after(self, session: Any) -> None:
        """Gives up a server that does not answer: the next call starts another."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await session.send_ping()
        except Exception:  # boundary: whatever a lost connection raises
            if self._session is session and self._keeper is not None:
                self._keeper.cancel()
                await asyncio.wait({self._keeper})


class McpTool(Tool):
    def __init__(self, server: McpServer, told: Any) -> None:
        """`told`: the tool, as the server describes it."""
        self._server = server
        self.name, self.description = str(told.name), str(told.description or "")
        self.parameters = dict(told.input_schema)

    async def run(self, arguments: Mapping[str, Any]) -> str:
        return await self._server.call(self.name, arguments)

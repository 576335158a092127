"""openai-agents with the tools of an MCP server, which it starts itself."""

from __future__ import annotations

import asyncio
import os
import sys

from agents import Agent, Runner, set_tracing_disabled
from agents.mcp import MCPServerStdio
from shop import MODEL, QUESTION, answered

set_tracing_disabled(True)


async def main() -> None:
    seed = {"ROLL_SEED": os.environ.get("ROLL_SEED", "0")}
    params = {"command": sys.executable, "args": ["mcp_tools.py"], "env": seed}
    async with MCPServerStdio(params, client_session_timeout_seconds=60) as server:
        agent = Agent(name="till", instructions="You work at a till.", model=MODEL, mcp_servers=[server])
        answered((await Runner.run(agent, QUESTION, max_turns=6)).final_output)


asyncio.run(main())

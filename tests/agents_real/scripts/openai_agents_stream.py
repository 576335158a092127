"""openai-agents over Responses, its own choice, as a stream."""

from __future__ import annotations

import asyncio

from agents import Agent, Runner, function_tool, set_tracing_disabled
from shop import MODEL, QUESTION, add, answered, price

set_tracing_disabled(True)


async def main() -> None:
    agent = Agent(name="till", instructions="You work at a till.", model=MODEL, tools=[function_tool(price), function_tool(add)])
    running = Runner.run_streamed(agent, QUESTION, max_turns=6)
    async for _ in running.stream_events():
        pass
    answered(running.final_output)


asyncio.run(main())

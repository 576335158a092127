"""openai-agents over Chat Completions: a first agent hands the question over to a second one, which has the tools."""

from __future__ import annotations

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from shop import MODEL, QUESTION, add, answered, price

set_tracing_disabled(True)
model = OpenAIChatCompletionsModel(model=MODEL, openai_client=AsyncOpenAI())
till = Agent(name="till", instructions="You work at a till.", model=model, tools=[function_tool(price), function_tool(add)])
door = Agent(name="door", instructions="You direct people to the till.", model=model, handoffs=[till])
answered(Runner.run_sync(door, QUESTION, max_turns=7).final_output)

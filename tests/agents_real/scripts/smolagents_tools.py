"""smolagents' agent that calls tools."""

from __future__ import annotations

from shop import MODEL, QUESTION, add, answered, price
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

agent = ToolCallingAgent(tools=[tool(price), tool(add)], model=OpenAIServerModel(MODEL), max_steps=5, verbosity_level=0)
answered(agent.run(QUESTION))

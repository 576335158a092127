"""smolagents' agent that writes Python, as a stream."""

from __future__ import annotations

from shop import MODEL, QUESTION, add, answered, price
from smolagents import CodeAgent, OpenAIServerModel, tool

tools = [tool(price), tool(add)]
agent = CodeAgent(tools=tools, model=OpenAIServerModel(MODEL), max_steps=5, verbosity_level=0, stream_outputs=True)
answered(agent.run(QUESTION))

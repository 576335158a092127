"""pydantic-ai, whose answer is a number: it is given by a tool of its own making."""

from __future__ import annotations

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from shop import MODEL, QUESTION, add, answered, price

agent = Agent(OpenAIChatModel(MODEL), output_type=int, instructions="You work at a till.", tools=[price, add], retries=3)
answered(agent.run_sync(QUESTION).output)

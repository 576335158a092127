"""The agent that langgraph has built in."""

from __future__ import annotations

from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent
from shop import MODEL, QUESTION, add, answered, price

agent = create_react_agent(ChatOpenAI(model=MODEL), [price, add], prompt="You work at a till.")
said = agent.invoke({"messages": [("user", QUESTION)]}, {"recursion_limit": 14})
answered(said["messages"][-1].content)

"""A task of verifiers in several turns: its null harness asks the model, and the caller is the user who looks up and adds."""

from __future__ import annotations

import asyncio
import os
import re

import verifiers.v1 as vf
from shop import GOODS, MODEL, QUESTION, add, answered, price


class Till(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    """Is scored by what it leaves in the folder."""


def told(said: str) -> str | None:
    """The user's next message; None where the model has answered."""
    if numbers := re.fullmatch(r"(\d+) \+ (\d+)", said):
        return add(*map(int, numbers.groups()))
    return " ".join(map(price, GOODS)) if said == "prices?" else None


async def play() -> None:
    client = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    harness = {"id": "null"}
    agent = vf.make_agent(vf.AgentConfig(harness=harness, runtime=vf.SubprocessConfig(), model=MODEL, client=client))
    task = Till(vf.TaskData(prompt=QUESTION.replace("with the tool add", "with me")), vf.TaskConfig())
    async with agent.interaction(task) as interaction:
        segment = await interaction.turn()
        for _ in range(5):
            if segment.terminated or (message := told(segment.last_reply or "")) is None:
                break
            segment = await interaction.turn(message)
        answered(segment.last_reply)


asyncio.run(play())

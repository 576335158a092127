"""A program: a harness of verifiers works at a task of sums_tasks with the run's policy; the task's own reward is posted."""

import asyncio
import json
import os
import urllib.request

import verifiers.v1 as vf
from sums_tasks import Sums, SumsConfig


async def play():
    tasks = list(Sums(SumsConfig(id="sums_tasks")).load())
    client = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    harness = {"id": "null"}
    agent = vf.make_agent(vf.AgentConfig(harness=harness, runtime=vf.SubprocessConfig(), model="policy", client=client))
    trace = await agent.run(tasks[int(os.environ["ROLL_SEED"]) % len(tasks)])
    if not trace.ok:
        raise SystemExit(str(trace.errors))
    told = {"value": float(trace.reward), "success": trace.reward == 1.0}
    headers = {"Authorization": f"Bearer {os.environ['ROLL_REWARD_KEY']}", "Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(os.environ["ROLL_REWARD_URL"], json.dumps(told).encode(), headers)).close()


asyncio.run(play())

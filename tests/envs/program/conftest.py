"""Plays episodes of programs whose code a test has written down, with a policy that says what it is to say."""

import asyncio
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from gateway_world import World
from living import lives

from roll.core.configs.agentic import EnvConfig
from roll.core.configs.program import ProgramConfig
from roll.core.data.episode import EpisodeTask
from roll.envs.program.player import Programs

sys.path.append(str(Path(__file__).parent))  # rewards are named by dotted path
TASK = EpisodeTask(uid="train/shop/3", tag="shop", index=1, env_seed=11)
HEAD = """
import json, os, sys, urllib.request

def post(url, key, body):
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)

def ask(*texts):
    messages = [{"role": "user", "content": text} for text in texts]
    body = {"model": "m", "messages": messages}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    return post(url, os.environ["OPENAI_API_KEY"], body)["choices"][0]["message"]["content"]

def reward(value):
    post(os.environ["ROLL_REWARD_URL"], os.environ["ROLL_REWARD_KEY"], {"value": value})
"""


@pytest.fixture
def play(tmp_path):
    """Plays one episode of the agent whose code is given; returns its samples."""

    def played(code, says=("first", "second!"), *, before=None, env=None, **program):
        folder = tmp_path / "given"
        folder.mkdir(exist_ok=True)
        (folder / "agent.py").write_text(HEAD + textwrap.dedent(code))
        config = ProgramConfig(
            **{"command": ["python", "agent.py"], "folder": str(folder), "reward": "programs_under_test.length"} | program
        )
        world = World(says)

        async def main():
            env_config = EnvConfig(env_type="program", program=config, **(env or {}))
            programs = Programs({"shop": env_config}, world.dialogue, "127.0.0.1", 5000, lambda tag: 50)
            try:
                playing = asyncio.ensure_future(programs.play(TASK, world.ask))
                if before is not None:
                    await before(playing, world)
                return await playing
            finally:
                await programs.close()

        played.world = world
        return asyncio.run(main())

    return played


@pytest.fixture
def no_child_is_left():
    """But those that other tests have left, and dead ones that nobody has asked about."""
    before = {*psutil.Process().children(recursive=True)}
    yield
    _, alive = psutil.wait_procs({*psutil.Process().children(recursive=True)} - before, timeout=20)
    assert not [each for each in alive if lives(each)]

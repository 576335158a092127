"""An OpenEnv server that counts to three: python counting_server.py PORT."""

import sys

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Said(Action):
    message: str


class Heard(Observation):
    text: str


class Counting(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.start, self.turn = (seed or 0) % 10, 0
        return Heard(text=f"go on from {self.start}", done=False)

    def step(self, action, timeout_s=None, **kwargs):
        self.turn += 1
        right = action.message.strip() == str(self.start + self.turn)
        return Heard(text=f"heard {action.message}", reward=float(right), done=self.turn == 3 or not right)

    @property
    def state(self):
        return State()


uvicorn.run(create_fastapi_app(Counting, Said, Heard, max_concurrent_envs=8), host="127.0.0.1", port=int(sys.argv[1]))

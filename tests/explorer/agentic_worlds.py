"""Environments for the tests of the agentic pipeline, named by dotted path."""

import os
import secrets
import signal
import time
from pathlib import Path

from roll.envs.tools.tool import Tool, text_parameter


class Letters:
    """Shows a letter a turn, chosen by the seed and the turn; an answer that begins with it earns 1. `length` turns."""

    instructions = "Write the letter you see."

    def __init__(self, length: int = 3) -> None:
        self.length = length

    def _show(self) -> str:
        return f"{'abcd'[(self.seed + self.turn) % 4]}="

    def _info(self, **more):
        return {"state_key": f"{self.seed % 4}/{self.turn}", **more}

    def reset(self, seed: int):
        self.seed, self.turn, self.score = seed, 0, 0
        return self._show(), self._info()

    def step(self, action_text: str):
        right = action_text.startswith(self._show()[0])
        self.turn += 1
        self.score += right
        over = self.turn >= self.length
        info = self._info(action_is_valid=bool(action_text), action_is_effective=right, score=float(self.score))
        if over:
            info["success"] = self.score >= self.length
        return self._show(), float(right), over, False, info

    def close(self) -> None:
        pass


class Deaf(Letters):
    """Takes no text for an action."""

    instructions = "Write a letter.\nAs a number."

    def step(self, action_text: str):
        self.turn += 1
        info = self._info(action_is_valid=False, action_is_effective=False)
        return self._show(), 0.0, self.turn >= self.length, False, info


class Talk:
    """Keeps the conversation itself: an answer that is the number of the turn earns 1. `forgets`: it shows the newest question
    alone. What is cut off earns 5."""

    instructions = ""

    def __init__(self, length: int = 3, forgets: bool = False, tools: tuple = ()) -> None:
        self.length, self.forgets, self.tools = length, forgets, tools

    def reset(self, seed: int):
        self.turn, self.messages = 0, [{"role": "user", "content": "num 0"}]
        return self.messages, {"tools": list(self.tools)} if self.tools else {}

    def step(self, action_text: str):
        earned = float(action_text == str(self.turn))
        self.turn += 1
        news = {"role": "user", "content": f"num {self.turn}"}
        self.messages = [news] if self.forgets else [*self.messages, {"role": "assistant", "content": action_text}, news]
        return self.messages, earned, self.turn >= self.length, False, {"success": True}

    def cut_off(self) -> float:
        return 5.0

    def close(self) -> None:
        pass


class Letter(Tool):
    """Says which letter comes at a place."""

    name, description, parameters = "letter", "num", text_parameter("place", "a number")

    @property
    def instructions(self) -> str:
        return "<letter>1</letter>".replace("<", ">").replace("/", "")

    async def run(self, arguments) -> str:
        return "abcd"[int(arguments["place"]) % 4]


class Breaking(Letters):
    """Fails in the second turn where the seed is odd, each time or (`once`) the first time only that a file is not there."""

    def __init__(self, length: int = 3, once: str | None = None) -> None:
        super().__init__(length)
        self.once = once

    def step(self, action_text: str):
        if self.turn == 1 and self.seed % 2:
            marker = Path(f"{self.once}.{self.seed}") if self.once else None
            if marker is None or not marker.exists():
                if marker is not None:
                    marker.touch()
                raise RuntimeError("this step was chosen to fail")
        return super().step(action_text)


KEPT = []


class Hostile(Letters):
    """In the second turn it raises, says too much, leaks, ends its process or hangs, or does nothing of the kind: the seed says
    which."""

    def step(self, action_text: str):
        if self.turn == 1:
            getattr(self, ("raised", "flooded", "leaked", "ended", "hung")[self.seed % 5] if self.seed % 2 else "fine")()
        return super().step(action_text)

    def fine(self):
        assert not KEPT, "the process that was full plays no more"

    def raised(self):
        raise RuntimeError("this step was chosen to fail")

    def flooded(self):
        print("words " * (1 << 16))
        raise RuntimeError("much " * (1 << 24))

    def leaked(self):
        while True:
            KEPT.append(bytearray(1 << 20))

    def ended(self):
        os._exit(3)

    def hung(self):
        time.sleep(1000)


class Killing(Letters):
    """Kills the process it runs in, once: whoever makes the file first does."""

    def __init__(self, marker: str, length: int = 3) -> None:
        super().__init__(length)
        self.marker = Path(marker)

    def step(self, action_text: str):
        try:
            self.marker.touch(exist_ok=False)
        except FileExistsError:
            return super().step(action_text)
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


async def turns_cost(group, each):
    """A stage: what an episode earned becomes less by `each` for every turn of it."""
    for sample in group.samples:
        cost = each * len(sample.trajectory.turns)
        sample.reward -= cost
        sample.reward_parts = {**sample.reward_parts, "turns": -cost}
    return group


def letters_said(trace, folder):
    """A reward: how often the last answers have an a, of all that they say."""
    said = "".join(each["messages"][-1]["content"] for each in trace["conversations"])
    return said.count("a") / max(len(said), 1)


class Shop(Letters):
    """Its steps have effects: each is a line of the file `orders`, under the number of the basket that `reset` has made."""

    def __init__(self, orders: str, length: int = 20) -> None:
        super().__init__(length)
        self.orders = Path(orders)
        self.orders.touch()

    def reset(self, seed: int):
        shown, info = super().reset(seed)
        self.basket = secrets.token_hex(8)
        return shown, {**info, "basket": self.basket}

    def _order(self, text: str) -> str:
        return f"{self.basket} {self.turn} {text!r}\n"

    def step(self, action_text: str):
        time.sleep(0.001)
        with self.orders.open("a") as file:
            file.write(self._order(action_text))
        time.sleep(0.001)
        step = super().step(action_text)
        return *step[:4], {**step[4], "basket": self.basket}

    def resume(self, past):
        self.seed, self.basket = past["seed"], past["info"]["basket"]
        self.turn, self.score = 0, 0
        for text in past["actions"]:
            super().step(text)
        if (begun := past["begun"]) is None:
            return None
        if self._order(begun) not in self.orders.read_text().splitlines(keepends=True):
            return self.step(begun)
        step = super().step(begun)
        return *step[:4], {**step[4], "basket": self.basket}


class Slow(Letters):
    """Takes its time."""

    def step(self, action_text: str):
        time.sleep(0.002)
        return super().step(action_text)


class Uneven(Slow):
    """Every third episode takes ten times as long."""

    def reset(self, seed: int):
        self.length = 20 if seed % 3 == 0 else 2
        return super().reset(seed)


class Fickle(Slow):
    """Shows something else in forks from its third turn on."""

    def _show(self) -> str:
        return super()._show() if self.turn < 3 else "a=" if str(os.getpid()) == os.environ["NO_FORK"] else "b="

"""An environment that asks for a product and pays for the number. It knows nothing of tools: `tool_wrapper` in the YAML puts a
calculator between the policy and this class.
"""

from __future__ import annotations

import random
from typing import Any


class Products:
    def __init__(self, largest: int = 9) -> None:
        """`largest`: factor; the smallest is 2."""
        if largest < 2:
            raise ValueError("largest must be >= 2")
        self.instructions = "Answer with the number alone."
        self._largest = largest

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        rng = random.Random(seed)
        self._factors = rng.randint(2, self._largest), rng.randint(2, self._largest)
        return f"What is {self.expression}?", {"state_key": self.expression}

    def step(self, action_text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """An answer ends the episode."""
        said = action_text.strip()
        right = said == self.oracle_action()
        info = {"action_is_valid": said.isdigit(), "action_is_effective": True, "success": right, "state_key": "over"}
        return "", float(right), True, False, info

    def close(self) -> None:
        pass

    def sample_action(self, rng: random.Random) -> str:
        return str(rng.randint(4, self._largest**2))

    def oracle_action(self) -> str:
        one, other = self._factors
        return str(one * other)

    @property
    def expression(self) -> str:
        one, other = self._factors
        return f"{one} * {other}"

"""Frozen lake: cross the ice to the goal without falling into a hole. The game is gymnasium's FrozenLake-v1.

Each seed is another lake. Slips, too, come from the seed alone, so a group whose episodes share a seed meets the same ones as
long as it acts alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Literal, get_args

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from numpy.typing import NDArray

from roll.core.configs.problems import ConfigError, Problem, did_you_mean
from roll.envs.drawn_grid import Tile, check_render_mode, drawn
from roll.envs.symbols import checked_vocabulary

VOCABULARY = {"player": "P", "frozen": "_", "hole": "O", "goal": "G", "fallen": "X", "arrived": "√"}
_ICE, _HOLE, _GOAL, _PLAYER = (235, 245, 255), (20, 60, 160), (30, 160, 60), (210, 40, 40)
TILES: dict[str, Tile] = {
    "P": (_ICE, _PLAYER),
    "_": (_ICE, None),
    "O": (_HOLE, None),
    "G": (_GOAL, None),
    "X": (_HOLE, _PLAYER),
    "\u221a": (_GOAL, _PLAYER),
}
"""Pictures of the symbols of `VOCABULARY`."""
Observation = Literal["grid", "compact"]
Place = tuple[int, int]
"""Row, column; from the upper left corner, from 0."""

MAP_TRIES = 100
"""Draws of a map before one is made solvable by force."""
Transitions = Mapping[int, Mapping[int, list[tuple[float, int, float, bool]]]]
"""state -> action -> [(probability, next state, reward, terminated)], gymnasium's `P`. States and actions count from 0."""


class FrozenLake(gymnasium.Env[str, Any]):
    action_names = ("Left", "Down", "Right", "Up")  # gymnasium's order

    def __init__(
        self,
        size: int = 4,
        p: float = 0.8,
        random_places: bool = True,
        is_slippery: bool = False,
        success_rate: float = 1 / 3,
        observation: Observation = "grid",
        grid_vocabulary: Mapping[str, str] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """`size`: rows and columns. `p`: probability that a square is ice, not a hole. `random_places`: start and goal lie
        anywhere; else in opposite corners. `is_slippery`: a move goes the way that was meant with probability `success_rate`,
        else at a right angle to it. `observation`: "grid", rows of symbols on lines of their own; "compact", the player's row
        and column, then the rows, on one line. `grid_vocabulary`: other symbols for some of `VOCABULARY`. `render_mode`:
        rgb_array, to be seen as a picture.

        Rewards: 1 for the goal, 0 otherwise. Raises `ConfigError`."""
        check_render_mode(render_mode)
        if not 2 <= size <= 32:
            raise ConfigError([Problem("size", size, "must be >= 2 and <= 32", "e.g. 4")])
        for key, share in (("p", p), ("success_rate", success_rate)):
            if not 0 < share <= 1:
                raise ConfigError([Problem(key, share, "must be > 0 and <= 1", "e.g. 0.8")])
        if observation not in get_args(Observation):
            known = get_args(Observation)
            fix = did_you_mean(observation, known, f"e.g. {known[0]}")
            raise ConfigError([Problem("observation", observation, f"must be one of {', '.join(known)}", fix)])
        self.size, self.p, self.random_places = size, p, random_places
        self.is_slippery, self.success_rate = is_slippery, success_rate
        self.observation, self.render_mode = observation, render_mode
        self.symbols = checked_vocabulary(grid_vocabulary, VOCABULARY)
        self.instructions = self._rules()
        most = size * (size + 1) + 2 * len(f"{size},")
        self.action_space = spaces.Discrete(len(self.action_names))
        self.observation_space = spaces.Text(most, charset=frozenset("".join(self.symbols.values()) + "\n ,/0123456789"))
        self._map: list[str] = []
        self._lake: FrozenLakeEnv
        self._policy: np.ndarray | None = None

    def _rules(self) -> str:
        s = self.symbols
        lines = [
            f"You are on a frozen lake of {self.size} by {self.size} squares. Walk to the goal without falling into a hole.",
            f"Symbols: {s['player']} you, {s['frozen']} ice, {s['hole']} hole, {s['goal']} goal."
            if self.render_mode is None
            else "You see the lake from above: you are red, ice is white, holes are blue, the goal is green.",
            "Each action moves you by one square; at the border you stay where you are.",
        ]
        if self.observation == "compact" and self.render_mode is None:
            lines.append("You see your row and column, counted from 0, and then the rows, separated by /.")
        if self.is_slippery:
            lines.append("The ice is slippery: you may move at a right angle to the way you meant.")
        return "\n".join(lines)

    @property
    def map(self) -> list[str]:
        """Rows of S (start), F (ice), H (hole) and G (goal)."""
        return self._map

    @property
    def player(self) -> Place:
        row, column = divmod(int(self._lake.s), self.size)
        return row, column

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._map = draw_map(self.np_random, self.size, self.p, self.random_places)
        self._lake = FrozenLakeEnv(desc=self._map, is_slippery=self.is_slippery, success_rate=self.success_rate)
        self._lake.reset(seed=int(self.np_random.integers(2**31)) if seed is None else seed)
        self._policy = None
        return self._drawn(), self._info(0.0)

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        _, reward, terminated, _, _ = self._lake.step(action)
        return self._drawn(), float(reward), bool(terminated), False, self._info(float(reward))

    def _info(self, reward: float) -> dict[str, Any]:
        return {"state_key": f"{'/'.join(self.map)} {self.player}", "success": reward > 0}

    def render(self) -> NDArray[np.uint8]:
        """The lake from above."""
        return drawn(self._rows(VOCABULARY), TILES)

    def _drawn(self) -> str:
        lines = self._rows(self.symbols)
        row, column = self.player
        return "\n".join(lines) if self.observation == "grid" else f"{row},{column} {'/'.join(lines)}"

    def _rows(self, s: Mapping[str, str]) -> list[str]:
        squares = {"S": s["frozen"], "F": s["frozen"], "H": s["hole"], "G": s["goal"]}
        standing = {"S": s["player"], "F": s["player"], "H": s["fallen"], "G": s["arrived"]}
        rows = [[squares[letter] for letter in row] for row in self.map]
        row, column = self.player
        rows[row][column] = standing[self.map[row][column]]
        return ["".join(line) for line in rows]

    def oracle_action(self) -> int | None:
        """The best action; None if there is no way to win any more."""
        if self._policy is None:
            self._policy = optimal_actions(self._lake.P)
        best = int(self._policy[self._lake.s])
        return None if best < 0 else best


def draw_map(rng: np.random.Generator, size: int, p: float, random_places: bool) -> list[str]:
    """A map on which the goal can be reached: drawn square by square, again if it cannot.

    Where that almost never succeeds (many holes on a large lake) a path of ice is cut into the last draw."""
    for _ in range(MAP_TRIES):
        squares = np.where(rng.random((size, size)) < p, "F", "H")
        start, goal = (0, 0), (size - 1, size - 1)
        if random_places:
            first, second = rng.choice(size * size, 2, replace=False)
            start, goal = (int(first) // size, int(first) % size), (int(second) // size, int(second) % size)
        squares[start], squares[goal] = "S", "G"
        if is_solvable(squares, start, goal):
            break
    else:
        _cut_path(squares, start, goal)
    return ["".join(row) for row in squares]


def is_solvable(squares: np.ndarray, start: Place, goal: Place) -> bool:
    """True if the goal can be reached on squares that are no holes."""
    seen, queue = {start}, deque([start])
    while queue:
        row, column = queue.popleft()
        for place in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            inside = 0 <= place[0] < squares.shape[0] and 0 <= place[1] < squares.shape[1]
            if inside and place not in seen and squares[place] != "H":
                seen.add(place)
                queue.append(place)
    return goal in seen


def _cut_path(squares: np.ndarray, start: Place, goal: Place) -> None:
    """Ice along the start's row, then along the goal's column."""
    (row, column), (goal_row, goal_column) = start, goal
    left, right = sorted((column, goal_column))
    top, bottom = sorted((row, goal_row))
    for place in [(row, c) for c in range(left, right + 1)] + [(r, goal_column) for r in range(top, bottom + 1)]:
        if squares[place] == "H":
            squares[place] = "F"


def optimal_actions(transitions: Transitions, discount: float = 0.99, tolerance: float = 1e-9) -> NDArray[np.int64]:
    """[states]: the action of largest expected discounted return; -1 where the return of all actions is the same.

    V(s) = max_a Σ p·(r + discount·V(s')·[not terminated]), iterated until no value changes by more than `tolerance`."""
    rows = [
        (state, action, probability, following, reward, not terminated)
        for state, actions in transitions.items()
        for action, outcomes in actions.items()
        for probability, following, reward, terminated in outcomes
    ]
    state, action, probability, following, reward, goes_on = (np.array(column) for column in zip(*rows, strict=True))
    states, actions = len(transitions), len(transitions[0])
    values = np.zeros(states)
    while True:
        returns = np.zeros((states, actions))
        np.add.at(returns, (state, action), probability * (reward + discount * goes_on * values[following]))
        improved = returns.max(axis=1)
        change = np.abs(improved - values).max()
        values = improved
        if change <= tolerance:
            flat = returns.max(axis=1) - returns.min(axis=1) <= tolerance
            return np.where(flat, -1, returns.argmax(axis=1))

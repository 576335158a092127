"""Sokoban: push every box onto a target; what a room is, the rule of moving, rooms that can be solved, a player that solves small
ones, and the game.

Our own code: the package gym-sokoban, which others use, is no longer maintained, needs the old gym, and draws from the global
random generator. A room is generated as it does, by *reverse play*: it starts solved, and the player walks and pulls boxes off
their targets; as every pull undone is a push, what results can be solved.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from roll.core.configs.problems import ConfigError, Problem, did_you_mean
from roll.envs.symbols import checked_vocabulary

Place = tuple[int, int]
"""Row, column."""
DIRECTIONS: tuple[Place, ...] = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""Up, down, left, right."""

TRIES = 200
"""Draws of a room before an easier one is taken."""
Moves = tuple[()] | tuple["Moves", tuple[int, ...]]
"""The moves before, and a walk that ends with a push: states that share a beginning share its moves."""
MOST_STATES = 200_000
"""The number of states that the search examines before it gives up."""


@dataclass(frozen=True, slots=True)
class Room:
    """A state of the game. The outermost squares are walls."""

    rows: int
    columns: int
    floor: frozenset[Place]
    """Squares that are no walls; targets are among them."""
    targets: frozenset[Place]
    boxes: frozenset[Place]
    player: Place

    @property
    def on_target(self) -> int:
        return len(self.boxes & self.targets)

    @property
    def solved(self) -> bool:
        return self.boxes == self.targets

    def moved(self, direction: Place) -> Room:
        """After a step in the direction: it pushes one box, onto free floor; otherwise, nothing changes."""
        ahead = shifted(self.player, direction)
        if ahead not in self.floor:
            return self
        if ahead not in self.boxes:
            return self.with_state(ahead, self.boxes)
        behind = shifted(ahead, direction)
        if behind not in self.floor or behind in self.boxes:
            return self
        return self.with_state(ahead, self.boxes - {ahead} | {behind})

    def pulled(self, direction: Place) -> Room | None:
        """Reverse play: the player steps in the direction and draws along the box behind. None if that cannot be done."""
        ahead, behind = shifted(self.player, direction), shifted(self.player, opposite(direction))
        if ahead not in self.floor or ahead in self.boxes or behind not in self.boxes:
            return None
        return self.with_state(ahead, self.boxes - {behind} | {self.player})

    def with_state(self, player: Place, boxes: frozenset[Place]) -> Room:
        return Room(self.rows, self.columns, self.floor, self.targets, boxes, player)


def shifted(place: Place, direction: Place) -> Place:
    return place[0] + direction[0], place[1] + direction[1]


def opposite(direction: Place) -> Place:
    return -direction[0], -direction[1]


def draw_room(rng: np.random.Generator, rows: int, columns: int, boxes: int, search_depth: int, min_pushes: int) -> Room:
    """A room that can be solved, with no box on a target and at least `min_pushes` pushes from its solution; if `TRIES` draws
    have none, the hardest of them.

    `search_depth`: pulls of reverse play; the hardest of the states it meets is taken."""
    hardest: tuple[tuple[int, int], Room] | None = None
    for _ in range(TRIES):
        solved = _draw_solved(rng, rows, columns, boxes)
        if solved is None:
            continue
        distances = push_distances(solved)
        for room in _reverse_play(rng, solved, search_depth):
            difficulty = -room.on_target, sum(distances[box] for box in room.boxes)
            if hardest is None or difficulty > hardest[0]:
                hardest = difficulty, room
        if hardest is not None and hardest[0] >= (0, min_pushes):
            break
    if hardest is None or hardest[1].solved:
        raise ValueError(f"no room of {rows} by {columns} squares with {boxes} boxes could be made")
    return hardest[1]


def _draw_solved(rng: np.random.Generator, rows: int, columns: int, boxes: int) -> Room | None:
    """Floor carved by a random walk that prefers to go on straight, boxes on their targets, the player beside them."""
    inside = (rows - 2) * (columns - 2)
    wanted = max(boxes + 2, round(inside * rng.uniform(0.6, 0.9)))
    place = (int(rng.integers(1, rows - 1)), int(rng.integers(1, columns - 1)))
    direction = DIRECTIONS[rng.integers(4)]
    floor = {place}
    for _ in range(50 * inside):
        if len(floor) >= wanted:
            break
        if rng.random() < 0.35:
            direction = DIRECTIONS[rng.integers(4)]
        following = shifted(place, direction)
        if 1 <= following[0] < rows - 1 and 1 <= following[1] < columns - 1:
            place = following
            floor.add(place)
    squares = sorted(floor)
    if len(squares) < boxes + 1:
        return None
    chosen = rng.choice(len(squares), boxes + 1, replace=False)
    targets = frozenset(squares[i] for i in chosen[:-1])
    return Room(rows, columns, frozenset(floor), targets, targets, squares[chosen[-1]])


def _reverse_play(rng: np.random.Generator, room: Room, pulls: int) -> Iterator[Room]:
    """The states after each of some pulls, every one drawn from all that the player could walk to."""
    yield room
    for _ in range(pulls):
        walked = [room.with_state(place, room.boxes) for place in sorted(walks(room))]
        following = [pulled for state in walked for direction in DIRECTIONS if (pulled := state.pulled(direction))]
        if not following:
            return
        room = following[rng.integers(len(following))]
        yield room


def walks(room: Room) -> dict[Place, tuple[int, ...]]:
    """Squares the player can walk to without a push, and a shortest walk to each: indices of `DIRECTIONS`."""
    found: dict[Place, tuple[int, ...]] = {room.player: ()}
    queue = deque([room.player])
    while queue:
        place = queue.popleft()
        for i, direction in enumerate(DIRECTIONS):
            ahead = shifted(place, direction)
            if ahead in room.floor and ahead not in room.boxes and ahead not in found:
                found[ahead] = (*found[place], i)
                queue.append(ahead)
    return found


def push_distances(room: Room) -> dict[Place, int]:
    """Pushes from a square to the nearest target with no other box in the room; squares without a way are missing."""
    distances = dict.fromkeys(room.targets, 0)
    queue = deque(sorted(room.targets))
    while queue:
        box = queue.popleft()
        for direction in DIRECTIONS:
            earlier = shifted(box, opposite(direction))
            pusher = shifted(earlier, opposite(direction))
            if earlier in room.floor and pusher in room.floor and earlier not in distances:
                distances[earlier] = distances[box] + 1
                queue.append(earlier)
    return distances


def solve(room: Room, most_states: int = MOST_STATES) -> list[int] | None:
    """Moves (indices of `DIRECTIONS`) that solve the room with the fewest pushes. None: there are none, or the search is too
    long.

    A* over pushes: its lower bound on the pushes left is the sum, over the boxes, of the pushes to the nearest target in an
    otherwise empty room; a box from which no target can be reached rules a state out."""
    distances = push_distances(room)
    if any(box not in distances for box in room.boxes):
        return None
    order = count()  # ties are broken by age, never by comparing rooms
    heap: list[tuple[int, int, int, Room, Moves]] = [(sum(distances[box] for box in room.boxes), next(order), 0, room, ())]
    best: dict[tuple[frozenset[Place], Place], int] = {}
    while heap and len(best) < most_states:
        _, _, pushes, state, moves = heapq.heappop(heap)
        if state.solved:
            return _unfold(moves)
        paths = walks(state)
        # Two states are the same if the player can walk from one place to the other.
        key = (state.boxes, min(paths))
        if best.get(key, pushes + 1) <= pushes:
            continue
        best[key] = pushes
        for box in state.boxes:
            for i, direction in enumerate(DIRECTIONS):
                side, ahead = shifted(box, opposite(direction)), shifted(box, direction)
                if side in paths and ahead in distances and ahead not in state.boxes:
                    boxes = state.boxes - {box} | {ahead}
                    pushed = state.with_state(box, boxes)
                    bound = pushes + 1 + sum(distances[place] for place in boxes)
                    heapq.heappush(heap, (bound, next(order), pushes + 1, pushed, (moves, (*paths[side], i))))
    return None


def _unfold(moves: Moves) -> list[int]:
    parts = []
    while moves:
        moves, part = moves
        parts.append(part)
    return [move for part in reversed(parts) for move in part]


KINDS = ("wall", "floor", "target", "box", "box_on_target", "player", "player_on_target")
VOCABULARIES = {
    name: dict(zip(KINDS, symbols, strict=True))
    for name, symbols in {
        "default": "#_OX√PS",
        "xsb": "# .$*@+",  # the notation of Sokoban level files
        "letters": "WETBKPQ",
    }.items()
}


class Sokoban(gymnasium.Env[str, Any]):
    action_names = ("Up", "Down", "Left", "Right")

    def __init__(
        self,
        dim_room: Sequence[int] = (6, 6),
        num_boxes: int = 1,
        search_depth: int = 30,
        min_pushes: int = 2,
        grid_vocabulary: str | Mapping[str, str] = "default",
        step_reward: float = -0.1,
        box_on_target_reward: float = 1.0,
        box_off_target_reward: float = -1.0,
        solved_reward: float = 10.0,
    ) -> None:
        """`dim_room`: rows and columns, walls included. `search_depth`: pulls of the reverse play that makes a room; the
        hardest of the states it meets is taken. `min_pushes`: rooms that are solved with fewer are drawn again.
        `grid_vocabulary`: a name of `VOCABULARIES`, or other symbols for some kinds of squares.

        Rewards add up: `step_reward` for every move, `box_on_target_reward` or `box_off_target_reward` when a box is pushed onto
        or off a target, `solved_reward` when all are on targets; their defaults are gym-sokoban's. Raises `ConfigError`."""
        _check_room(dim_room, num_boxes, search_depth, min_pushes)
        self.symbols = _symbols(grid_vocabulary)
        self.rows, self.columns = dim_room
        self.num_boxes = num_boxes
        self.search_depth, self.min_pushes = search_depth, min_pushes
        self.rewards = (step_reward, box_on_target_reward, box_off_target_reward, solved_reward)
        self.format_penalty = min(0.0, step_reward)  # what a move costs: sitting still must not be cheaper
        self.instructions = self._rules()
        self.action_space = spaces.Discrete(len(self.action_names))
        self.observation_space = spaces.Text(
            self.rows * (self.columns + 1), charset=frozenset("".join(self.symbols.values()) + "\n")
        )
        self.room: Room
        self._plan: tuple[Room, list[int]] | None = None

    def _rules(self) -> str:
        s = self.symbols
        return "\n".join(
            [
                "You push boxes in a room of square fields. Push every box onto a target.",
                "Each action moves you by one square. If a box is there, you push it one square further; you cannot push it into "
                "a wall or into another box, and you cannot pull.",
                f"Symbols: {s['player']} you, {s['player_on_target']} you on a target, {s['box']} box, "
                f"{s['box_on_target']} box on a target, {s['target']} target, {s['floor']} floor, {s['wall']} wall.",
            ]
        )

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.room = draw_room(self.np_random, self.rows, self.columns, self.num_boxes, self.search_depth, self.min_pushes)
        self._plan = None
        return draw(self.room, self.symbols), self._info()

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        step, on, off, solved = self.rewards
        before = self.room.on_target
        self.room = self.room.moved(DIRECTIONS[action])
        gained = self.room.on_target - before
        reward = step + (on if gained > 0 else off if gained < 0 else 0.0) + (solved if self.room.solved else 0.0)
        return draw(self.room, self.symbols), reward, self.room.solved, False, self._info()

    def _info(self) -> dict[str, Any]:
        return {"state_key": draw(self.room, VOCABULARIES["default"]), "success": self.room.solved}

    def oracle_action(self) -> int | None:
        """The next move of a solution with the fewest pushes; None if there is none."""
        plan = self._plan
        if plan is None or plan[0] != self.room or not plan[1]:
            plan = self.room, solve(self.room) or []
        if not plan[1]:
            return None
        move, *rest = plan[1]
        self._plan = self.room.moved(DIRECTIONS[move]), rest
        return move


def _check_room(dim_room: Sequence[int], num_boxes: int, search_depth: int, min_pushes: int) -> None:
    """Raises `ConfigError`."""
    if len(dim_room) != 2 or not all(5 <= side <= 20 for side in dim_room):
        raise ConfigError([Problem("dim_room", list(dim_room), "must be [rows, columns], each >= 5 and <= 20", "e.g. [6, 6]")])
    rows, columns = dim_room
    most = (rows - 2) * (columns - 2) // 3
    if not 1 <= num_boxes <= most:
        message = f"must be >= 1 and <= {most}, a third of the squares inside dim_room {list(dim_room)}"
        raise ConfigError([Problem("num_boxes", num_boxes, message, f"e.g. {most if num_boxes > most else 1}")])
    for key, number in (("search_depth", search_depth), ("min_pushes", min_pushes)):
        if number < 1:
            raise ConfigError([Problem(key, number, "must be >= 1", "e.g. 1")])


def _symbols(grid_vocabulary: str | Mapping[str, str]) -> Mapping[str, str]:
    """Raises `ConfigError`."""
    if not isinstance(grid_vocabulary, str):
        return checked_vocabulary(grid_vocabulary, VOCABULARIES["default"])
    if grid_vocabulary not in VOCABULARIES:
        fix = did_you_mean(grid_vocabulary, VOCABULARIES, "e.g. default")
        raise ConfigError([Problem("grid_vocabulary", grid_vocabulary, f"must be one of {', '.join(VOCABULARIES)}", fix)])
    return VOCABULARIES[grid_vocabulary]


def draw(room: Room, symbols: Mapping[str, str]) -> str:
    """Rows of symbols, one line each."""

    def symbol(place: tuple[int, int]) -> str:
        if place not in room.floor:
            return symbols["wall"]
        kind = "player" if place == room.player else "box" if place in room.boxes else ""
        if place in room.targets:
            return symbols[f"{kind}_on_target" if kind else "target"]
        return symbols[kind or "floor"]

    return "\n".join("".join(symbol((r, c)) for c in range(room.columns)) for r in range(room.rows))

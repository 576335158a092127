"""A player that solves small Sokoban rooms: A* over pushes.

Its lower bound on the pushes left is the sum, over the boxes, of the pushes to the nearest target in an otherwise empty room; a
box from which no target can be reached rules a state out.
"""

from __future__ import annotations

import heapq
from itertools import count

from roll.envs.sokoban_rooms import DIRECTIONS, Place, Room, opposite, push_distances, shifted, walks

Moves = tuple[()] | tuple["Moves", tuple[int, ...]]
"""The moves before, and a walk that ends with a push: states that share a beginning share its moves."""
MOST_STATES = 200_000
"""The number of states that the search examines before it gives up."""


def solve(room: Room, most_states: int = MOST_STATES) -> list[int] | None:
    """Moves (indices of `DIRECTIONS`) that solve the room with the fewest pushes. None: there are none, or the search is too
    long."""
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

"""Sokoban: rules and rewards on rooms drawn by hand; generated rooms can be solved."""

from collections import deque

import numpy as np
import pytest

from roll.core.configs.problems import ConfigError
from roll.envs.registry import make_env
from roll.envs.sokoban import DIRECTIONS, VOCABULARIES, Room, draw, draw_room, solve
from roll.envs.text_game import TextGame

UP, DOWN, LEFT, RIGHT = DIRECTIONS


def sokoban(**config: object) -> TextGame:
    env = make_env("sokoban", config)
    assert isinstance(env, TextGame)
    return env


def room(*rows: str) -> Room:
    """From the notation of level files."""
    at = {(r, c): symbol for r, row in enumerate(rows) for c, symbol in enumerate(row)}
    return Room(
        rows=len(rows),
        columns=len(rows[0]),
        floor=frozenset(place for place, symbol in at.items() if symbol != "#"),
        targets=frozenset(place for place, symbol in at.items() if symbol in ".*+"),
        boxes=frozenset(place for place, symbol in at.items() if symbol in "$*"),
        player=next(place for place, symbol in at.items() if symbol in "@+"),
    )


def drawn(state: Room) -> list[str]:
    return draw(state, VOCABULARIES["xsb"]).split("\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("#@  #", "# @ #"),
        ("#@$ #", "# @$#"),
        ("#@$.#", "# @*#"),
        ("#@*.#", "# +*#"),
        ("#@* #", "# +$#"),
        ("# @##", "# @##"),  # a wall
        ("#@$##", "#@$##"),  # a box before a wall
        ("@$$ #", "@$$ #"),  # two boxes
        ("#+  #", "#.@ #"),
    ],
)
def test_a_step_to_the_right(before: str, after: str) -> None:
    wall = "#" * 5
    assert drawn(room(wall, before, wall).moved(RIGHT)) == [wall, after, wall]


def test_a_box_is_never_pulled() -> None:
    assert drawn(room("#####", "# @$#", "#####").moved(LEFT)) == ["#####", "#@ $#", "#####"]


def test_pulling_is_pushing_backwards() -> None:
    rng = np.random.default_rng(0)
    state = draw_room(rng, 8, 8, 3, 20, 2)
    pulls = 0
    for _ in range(300):
        direction = DIRECTIONS[rng.integers(4)]
        pulled = state.pulled(direction)
        if pulled is not None:
            assert pulled.moved((-direction[0], -direction[1])) == state
            pulls += 1
        state = pulled or state.moved(direction)
    assert pulls > 10


def played(start: Room, moves: str, **config: object) -> list[tuple[float, bool, bool]]:
    """(reward, terminated, success) of every move."""
    env = sokoban(**config)
    env.reset(0)
    env.env.room = start
    names = {"u": "Up", "d": "Down", "l": "Left", "r": "Right", "?": "Jump"}
    steps = [env.step(f"<answer>{names[move]}</answer>") for move in moves]
    return [(round(step[1], 6), step[2], step[4].get("success", False)) for step in steps]


def test_rewards_are_gym_sokobans() -> None:
    start = room("#######", "#@$. .#", "#  $  #", "#######")
    assert played(start, "r") == [(0.9, False, False)], "onto a target"
    assert played(start, "rr") == [(0.9, False, False), (-1.1, False, False)], "and off it again"
    assert played(start, "d?", format_penalty=-0.5) == [(-0.1, False, False), (-0.5, False, False)]
    assert played(start, "d?") == [(-0.1, False, False), (-0.1, False, False)], "an unreadable action is as dear as a move"
    last = room("######", "#@$. #", "######")
    assert played(last, "r") == [(10.9, True, True)]
    assert played(last, "r", step_reward=0, box_on_target_reward=2, solved_reward=5) == [(7.0, True, True)]


def test_an_episode_is_truncated() -> None:
    env = sokoban(max_steps=3)
    env.reset(0)
    steps = [env.step("") for _ in range(3)]
    assert [step[2:4] for step in steps] == [(False, False), (False, False), (False, True)]
    assert steps[-1][4]["success"] is False


@pytest.mark.parametrize(
    ("config", "different"),
    [({}, 40), ({"num_boxes": 2}, 45), ({"dim_room": [5, 5]}, 20), ({"dim_room": [8, 7], "num_boxes": 3}, 50)],
    ids=["default", "two boxes", "smallest", "larger"],
)
def test_generated_rooms_are_solved_by_the_oracle(config: dict[str, object], different: int) -> None:
    env, starts = sokoban(**config), set()
    for seed in range(50):
        observation, _ = env.reset(seed)
        game = env.env
        starts.add(observation)
        assert len(game.room.boxes) == len(game.room.targets) == game.num_boxes
        assert game.room.on_target == 0 and game.room.player in game.room.floor - game.room.boxes
        assert all(0 < r < game.room.rows - 1 and 0 < c < game.room.columns - 1 for r, c in game.room.floor)
        steps = 0
        while (action := env.oracle_action()) is not None:
            _, _, terminated, truncated, info = env.step(action)
            steps += 1
            if terminated or truncated:
                break
        assert terminated and info["success"], f"seed {seed}"
        assert steps >= game.min_pushes
    assert len(starts) >= different


def test_the_solver_finds_the_fewest_pushes_and_knows_what_cannot_be_done() -> None:
    assert solve(room("######", "#@$ .#", "######")) == [3, 3]
    around = solve(room("######", "#    #", "#.$@ #", "#    #", "######"))
    assert around == [2]
    assert solve(room("#####", "#$@.#", "#   #", "#####")) is None, "a box in a corner"
    start = room("#######", "# . . #", "# $$  #", "#  @  #", "#######")
    moves = solve(start)
    assert moves is not None
    pushes, state = 0, start
    for move in moves:
        following = state.moved(DIRECTIONS[move])
        pushes += following.boxes != state.boxes
        state = following
    assert state.solved and pushes == 3


def fewest_pushes(start: Room) -> int:
    """By breadth first over moves, those without a push for free."""
    distance, queue = {start: 0}, deque([start])
    while queue:
        state = queue.popleft()
        if state.solved:
            return distance[state]
        for direction in DIRECTIONS:
            following = state.moved(direction)
            pushes = distance[state] + (following.boxes != state.boxes)
            if pushes < distance.get(following, pushes + 1):
                distance[following] = pushes
                (queue.append if following.boxes != state.boxes else queue.appendleft)(following)
    raise AssertionError("unsolvable")


def test_the_solver_is_optimal_on_generated_rooms() -> None:
    for seed in range(40):
        start = draw_room(np.random.default_rng(seed), 7, 7, 2, 30, 2)
        state, pushes = start, 0
        for move in solve(start) or []:
            following = state.moved(DIRECTIONS[move])
            pushes, state = pushes + (following.boxes != state.boxes), following
        assert state.solved and pushes == fewest_pushes(start)


def test_a_seed_is_a_room() -> None:
    one, other = sokoban(num_boxes=2), sokoban(num_boxes=2)
    assert one.reset(2**62 + 3) == other.reset(2**62 + 3)
    other.reset(4)
    assert one.reset(5) == other.reset(5), "nothing is left of the episode before"


@pytest.mark.parametrize("name", VOCABULARIES)
def test_vocabularies_draw_the_same_room(name: str) -> None:
    observation, info = sokoban(grid_vocabulary=name).reset(3)
    plain, plain_info = sokoban().reset(3)
    translation = {VOCABULARIES[name][kind]: symbol for kind, symbol in VOCABULARIES["default"].items()}
    assert "".join(translation.get(symbol, symbol) for symbol in observation) == plain
    assert info["state_key"] == plain_info["state_key"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"dim_room": [4, 6]}, "must be [rows, columns], each >= 5"),
        ({"num_boxes": 6}, "must be >= 1 and <= 5"),
        ({"search_depth": 0}, "search_depth = 0: must be >= 1"),
        ({"grid_vocabulary": "emoji"}, "must be one of default, xsb, letters"),
        ({"grid_vocabulary": {"box": "#"}}, "have the same symbol"),
    ],
)
def test_bad_configurations(config: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        sokoban(**config)
    assert message in str(error.value)

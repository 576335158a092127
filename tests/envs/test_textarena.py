"""The adapter of textarena, with games of its form instead of the package: what the agent sees, who moves, what is paid."""

import random
import sys
import types
from typing import Any

import pytest

from roll.core.configs.problems import ConfigError
from roll.envs.check import check_env
from roll.envs.textarena import TextArena, env_ids

GAME, KIND = -1, object()


class State:
    def __init__(self, players: int) -> None:
        self.num_players, self.current_player_id, self.done, self.rewards = players, 0, False, None
        self.role_mapping = {0: "Player 0", 1: "Player 1", GAME: "GAME"}
        self.observations: dict[int, list[Any]] = {player: [] for player in range(players)}
        self.game_info = {player: {"invalid_move": False} for player in range(players)}
        self.error_count = 0

    def say(self, sender: int, message: str) -> None:
        for told in self.observations.values():
            told.append((sender, message, KIND))


class Heap:
    """Who takes the last stone of one heap wins; a second move that is none loses. The heap is a deck that is never put back."""

    players = 2
    named = "[1] [2]"

    def __init__(self, stones: int = 7) -> None:
        self.stones, self.dealt = stones, 0

    def reset(self, num_players: int, seed: int) -> None:
        assert num_players == self.players
        random.seed(seed)
        self.state = State(num_players)
        self.heap, self.dealt = random.randint(3, self.stones) - self.dealt, 1
        self.state.say(GAME, f"{self.heap} stones. Moves: {self.named}")

    def get_observation(self) -> tuple[int, list[Any]]:
        player = self.state.current_player_id
        seen, self.state.observations[player] = self.state.observations[player], []
        return player, seen

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        state, player = self.state, self.state.current_player_id
        state.say(player, action)
        if action not in ("[1]", "[2]"):
            state.error_count += 1
            state.say(GAME, "no move")
            state.game_info[player]["invalid_move"] = state.done = state.error_count > 1
            state.rewards = {player: -1, 1 - player: 1} if state.done else None
            return state.done, {}
        state.error_count, self.heap = 0, self.heap - int(action[1])
        state.say(GAME, f"{self.heap} stones. Moves: {self.named}")
        state.done = self.heap <= 0
        state.rewards = {player: 1, 1 - player: -1} if state.done else None
        state.current_player_id = (player + 1) % self.players
        return state.done, {}


class Alone(Heap):
    players = 1


class Mute(Heap):
    named = "[none]"


class Silent(Alone):
    named = "you know them"


class Wrapper:
    def __init__(self, env: Any) -> None:
        self.env = env


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    games = {"Heap-v0": Heap, "Alone-v0": Alone, "Mute-v0": Mute, "Silent-v0": Silent, "Heap-v0-train": Heap, "Words-v0": dict}
    registration = types.ModuleType("textarena.envs.registration")
    registration.ENV_REGISTRY = games  # type: ignore[attr-defined]
    registration.make = lambda env_id, **args: Wrapper(Wrapper(games[env_id](**args)))  # type: ignore[attr-defined]
    for name in ("textarena", "textarena.envs"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["textarena.envs"].registration = registration  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "textarena.envs.registration", registration)


def test_only_what_is_new_is_shown_and_not_what_the_agent_wrote() -> None:
    env = TextArena("Alone-v0", stones=3)
    assert env.reset(1)[0] == "3 stones. Moves: [1] [2]"
    observation, reward, terminated, _, info = env.step("[1]")
    assert (observation, reward, terminated, info["action_is_valid"]) == ("2 stones. Moves: [1] [2]", 0.0, False, True)
    assert env.step("what?")[4]["action_is_valid"] is False
    assert env.step("[2]")[1:3] == (1.0, True)


def test_the_others_move_and_are_told_apart() -> None:
    env = TextArena("Heap-v0", stones=7)
    env.reset(5)
    observation, *_ = env.step("[1]")
    assert "Player 1: [" in observation and "Player 0" not in observation


def test_a_sample_is_no_part_of_the_game() -> None:
    """Where no move is named, too."""
    env, other = TextArena("Silent-v0"), TextArena("Silent-v0")
    for each in (env, other):
        each.reset(3)
    assert env.sample_action(random.Random(1)) == "[0]"
    assert env.step("no") == other.step("no") and env.step("no") == other.step("no")
    assert env.sample_action(random.Random(1)) == TextArena("Silent-v0").sample_action(random.Random(1))


def test_who_writes_no_moves_loses() -> None:
    env = TextArena("Heap-v0")
    env.reset(5)
    assert [env.step("no")[1:3] for _ in range(2)] == [(0.0, False), (-1.0, True)]


def test_nobody_wins_against_one_who_has_no_move() -> None:
    env = TextArena("Mute-v0", stones=9)
    env.reset(5)
    with pytest.raises(ValueError, match="player 1 has no move"):
        env.step("[1]")


@pytest.mark.parametrize("game", ["Heap-v0", "Alone-v0"])
def test_the_contract(game: str) -> None:
    """A game that goes on with the deck of the one before begins anew, and repeats by its seed."""
    report = check_env("textarena", {"env_id": game}, episodes=8)
    assert report.ok, report.errors
    assert report.agents["random"].invalid_share == 0.0


def test_games_that_cannot_begin_here_are_not_offered() -> None:
    assert env_ids() == ["Alone-v0", "Heap-v0", "Mute-v0", "Silent-v0"]
    with pytest.raises(ConfigError, match="roll env list textarena"):
        TextArena("Chess-v0")

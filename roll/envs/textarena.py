"""Games of `textarena` (github.com/LeonGuertler/TextArena). The agent sees what the game has said since its last move, and is
paid at the end. In games of several players it has the first seat, and the others move at random among what the game tells
them in brackets."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import random
import re
from collections.abc import Iterator
from typing import Any

from roll.core.configs.problems import ConfigError, Problem
from roll.core.errors import boundary
from roll.envs.environment import Info
from roll.envs.gem import GemEnv
from roll.envs.packages import importing

GAME = -1
"""The speaker of the game's own words."""
MOST_PLAYERS = 6
TRIES = 12
"""Moves that another player tries until the game takes one."""
_MOVE = re.compile(r"\[[^\[\]\n]{1,40}\]")
_VERSIONS = ("-raw", "-train")
"""Ends of ids of the same games, otherwise shown."""


def _package() -> Any:
    """Raises `ConfigError`."""
    with importing("textarena"):
        from textarena.envs import registration
    return registration


def _game(env_id: str, **game_args: object) -> Any:
    """Returns the game without the package's wrappers, which would repeat all that was said each time."""
    game = _package().make(env_id, **game_args)
    while (inner := vars(game).get("env")) is not None:
        game = inner
    return game


def env_ids() -> list[str]:
    """Returns the ids that can begin here: others need word lists that nltk downloads, or a model that judges."""
    found = []
    for env_id in _package().ENV_REGISTRY:
        if not env_id.endswith(_VERSIONS):
            with contextlib.suppress(Exception), _quiet():  # boundary: foreign code
                Table(_game(env_id)).reset(0)
                found.append(env_id)
    return sorted(found)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


class TextArena(GemEnv):
    def __init__(self, env_id: str, success_reward: float = 1.0, **game_args: object) -> None:
        """`env_id`: textarena's name. `success_reward`: a game that pays at least this is a success. Other keys are handed to
        the game. Raises `ConfigError`."""
        if env_id not in _package().ENV_REGISTRY:
            raise ConfigError([Problem("env_id", env_id, "is no game of textarena", "roll env list textarena")])
        with boundary(
            lambda why: ConfigError([Problem("env_id", env_id, why, "roll env list textarena")]), "textarena refuses it"
        ):
            self._make(lambda: Table(_game(env_id, **game_args)), success_reward)

    def sample_action(self, rng: random.Random) -> str:
        """A move that the game has named."""
        if not self._env.has_begun:
            self.reset(0)
        return str(rng.choice(self._env.moves or ["[0]"]))


class Table:
    """A game with its players, as an environment of GEM's form."""

    def __init__(self, game: Any) -> None:
        self._unplayed = self._game = game
        self._history = hashlib.sha256()
        self.has_begun = False
        self.moves: list[str] = []
        """Texts in brackets of the newest observation that has some: there the game names moves."""

    def reset(self, seed: int) -> tuple[str, Info]:
        """A game of as few players as it takes, of its own: some go on with the deck of the last one."""
        self._rng, self.has_begun = random.Random(seed), True
        for players in range(1, MOST_PLAYERS + 1):
            random.seed(seed)  # some games draw without having been seeded
            self._game = copy.deepcopy(self._unplayed)
            with contextlib.suppress(AssertionError, ValueError, KeyError, IndexError):
                self._game.reset(num_players=players, seed=seed)
                break
        else:
            raise ValueError(f"it takes no number of players up to {MOST_PLAYERS}")
        self._history, self.moves = hashlib.sha256(), []
        self._others_move()
        return self._seen()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        done, _ = self._game.step(action=action)
        valid = not _refused(self._game, 0)
        if not done:
            self._others_move()
        observation, info = self._seen()
        state = self._game.state
        reward = float((state.rewards or {}).get(0, 0.0)) if state.done else 0.0
        return observation, reward, bool(state.done), False, {**info, "action_is_valid": valid, "action_is_effective": valid}

    def _others_move(self) -> None:
        """Raises `ValueError` where the game refuses its own moves: then nobody plays against the agent, who would win."""
        while not self._game.state.done and (player := self._game.state.current_player_id) != 0:
            said = " ".join(message for sender, message, *_ in self._game.get_observation()[1] if sender == GAME)
            moves = list(dict.fromkeys(_MOVE.findall(said))) or ["[pass]"]
            for move in self._rng.sample(moves, min(TRIES, len(moves))):
                tried = copy.deepcopy(self._game)
                tried.step(action=move)
                if not _refused(tried, player):
                    self._game = tried
                    break
            else:
                raise ValueError(f"player {player} has no move: the game names none that it takes")

    def _seen(self) -> tuple[str, Info]:
        state = self._game.state
        new = state.observations[0]
        state.observations[0] = []
        text = "\n".join(line for line in _lines(new, state) if line)
        self._history.update(text.encode())
        self.moves = list(dict.fromkeys(_MOVE.findall(text))) or self.moves
        return text, {"suffix": "", "state_key": self._history.hexdigest()}

    def close(self) -> None: ...


def _refused(game: Any, player: int) -> bool:
    return bool(getattr(game.state, "error_count", 0)) or bool(game.state.game_info[player]["invalid_move"])


def _lines(messages: Any, state: Any) -> Iterator[str]:
    """Yields lines of others than the agent. Some games mix up sender and message."""
    for sender, message, *_ in messages:
        if sender != 0 and isinstance(message, str):
            yield f"{state.role_mapping.get(sender, sender)}: {message.strip()}" if sender in range(1, 99) else message.strip()

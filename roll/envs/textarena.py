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

from roll.configs.problems import ConfigError, Problem
from roll.envs.gem import GemEnv
from roll.envs.packages import needs
from roll.errors import boundary
from roll.rollout.environment import Info

MOST_PLAYERS = 6
TRIES = 12
"""Moves that another player tries until the game takes one."""
_MOVE = re.compile(r"\[[^\[\]\n]{1,40}\]")
_VERSIONS = ("-raw", "-train")
"""Ends of ids of the same games, otherwise shown."""


def _package() -> Any:
    """Raises `ConfigError`."""
    try:
        from textarena.envs import registration
    except ImportError as error:
        raise needs("textarena", error) from error
    return registration


def _game(env_id: str, **game_args: object) -> Any:
    """The game without what the package wraps around it, which would repeat all that was said each time."""
    game = _package().make(env_id, **game_args)
    while (inner := vars(game).get("env")) is not None:
        game = inner
    return game


def env_ids() -> list[str]:
    """Those that can begin here: others need word lists that nltk downloads, or a model that judges."""
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
        with boundary(lambda why: ConfigError([Problem("env_id", env_id, why)]), "textarena refuses it"):
            self._make(lambda: Table(_game(env_id, **game_args)), success_reward)

    def sample_action(self, rng: random.Random) -> str:
        """A move that the game has named."""
        if not self._env.moves:
            self.reset(0)
        return str(rng.choice(self._env.moves or ["[0]"]))


class Table:
    """A game with its players, as an environment of GEM's form."""

    def __init__(self, game: Any) -> None:
        self._game = game
        self._history = hashlib.sha256()
        self.moves: list[str] = []
        """Texts in brackets of the newest observation that has some: there the game names moves."""

    def reset(self, seed: int) -> tuple[str, Info]:
        """Of as few players as the game takes."""
        for players in range(1, MOST_PLAYERS + 1):
            with contextlib.suppress(AssertionError, ValueError, KeyError, IndexError):
                self._game.reset(num_players=players, seed=seed)
                break
        else:
            raise ValueError(f"it takes no number of players up to {MOST_PLAYERS}")
        self._rng = random.Random(seed)
        self._history, self.moves = hashlib.sha256(), []
        self._others_move()
        return self._seen()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        done, _ = self._game.step(action=action)
        valid = not self._refused(0)
        if not done:
            self._others_move()
        observation, info = self._seen()
        state = self._game.state
        reward = float((state.rewards or {}).get(0, 0.0)) if state.done else 0.0
        return observation, reward, bool(state.done), False, {**info, "action_is_valid": valid, "action_is_effective": valid}

    def _refused(self, player: int) -> bool:
        state = self._game.state
        return bool(getattr(state, "error_count", 0)) or bool(state.game_info[player]["invalid_move"])

    def _others_move(self) -> None:
        while not self._game.state.done and (player := self._game.state.current_player_id) != 0:
            said = " ".join(message for _, message, *_ in self._game.get_observation()[1])
            moves = list(dict.fromkeys(_MOVE.findall(said))) or ["[pass]"]
            for move in self._rng.sample(moves, min(TRIES, len(moves))):
                tried = copy.deepcopy(self._game)
                tried.step(action=move)
                before, self._game = self._game, tried
                if not self._refused(player):
                    break
                self._game = before
            else:
                self._game.step(action=move)

    def _seen(self) -> tuple[str, Info]:
        state = self._game.state
        new = state.observations[0]
        state.observations[0] = []
        text = "\n".join(line for line in _lines(new, state) if line)
        self._history.update(text.encode())
        self.moves = list(dict.fromkeys(_MOVE.findall(text))) or self.moves
        return text, {"suffix": "", "state_key": self._history.hexdigest()}

    def close(self) -> None: ...


def _lines(messages: Any, state: Any) -> Iterator[str]:
    """Without what the agent itself wrote."""
    for sender, message, *_ in messages:
        if sender != 0:
            yield message.strip() if sender < 0 else f"{state.role_mapping.get(sender, sender)}: {message.strip()}"

"""gymnasium's other small games as text: CliffWalking-v1, Taxi-v4 and Blackjack-v1. Rules and rewards are gymnasium's."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property

import numpy as np
from gymnasium.envs.toy_text.blackjack import BlackjackEnv
from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv
from gymnasium.envs.toy_text.taxi import TaxiEnv
from numpy.typing import NDArray

from roll.configs.problems import ConfigError, Problem
from roll.envs.actions import ANSWER_PATTERN, ActionReader
from roll.envs.game import MoveOutcome, NamedActionGame
from roll.envs.planning import optimal_actions


class CliffWalking(NamedActionGame):
    """A shelf of 4 rows and 12 columns; between start and goal lies the cliff. Every episode starts alike."""

    def __init__(
        self,
        is_slippery: bool = False,
        max_steps: int = 100,
        action_pattern: str = ANSWER_PATTERN,
        action_lookup: Mapping[str, str] | None = None,
        format_penalty: float = 0.0,
    ) -> None:
        """Rewards: -1 a move, -100 for stepping off the cliff (which leads back to the start). Raises `ConfigError`."""
        rules = (
            "Walk along a cliff, from the lower left corner (S) to the lower right one (G). You are P. Stepping onto C costs 100 "
            "points and puts you back at the start; every step costs 1 point."
        )
        if is_slippery:
            rules += " The ground is slippery: you may move at a right angle to the way you meant."
        reader = ActionReader(("Up", "Right", "Down", "Left"), action_pattern, action_lookup, format_penalty)
        super().__init__(rules, reader, max_steps)
        self._game = CliffWalkingEnv(is_slippery=is_slippery)

    def _begin(self, seed: int) -> None:
        self._game.reset(seed=seed)

    def _move(self, action: int) -> MoveOutcome:
        _, reward, terminated, _, _ = self._game.step(action)
        return MoveOutcome(float(reward), bool(terminated), success=bool(terminated))

    def _observe(self) -> str:
        rows = [list("_" * 12) for _ in range(3)] + [list("S" + "C" * 10 + "G")]
        row, column = divmod(int(self._game.s), 12)
        rows[row][column] = "P"
        return "\n".join("".join(line) for line in rows)

    def _state(self) -> Hashable:
        return int(self._game.s)

    @cached_property
    def _policy(self) -> NDArray[np.int64]:
        return optimal_actions(self._game.P)

    def _best_action(self) -> int | None:
        return int(self._policy[self._game.s])


class Taxi(NamedActionGame):
    """A taxi in a town of 5 by 5 squares with some walls; the seed says where taxi, passenger and destination are."""

    STANDS = ("Red", "Green", "Yellow", "Blue")

    def __init__(
        self,
        is_rainy: bool = False,
        fickle_passenger: bool = False,
        max_steps: int = 200,
        action_pattern: str = ANSWER_PATTERN,
        action_lookup: Mapping[str, str] | None = None,
        format_penalty: float = 0.0,
    ) -> None:
        """`is_rainy`: a move may go sideways. `fickle_passenger`: the passenger may change the destination once.

        Rewards: -1 a move, 20 for the passenger put down at the destination, -10 for picking up or putting down where that cannot
        be done. Raises `ConfigError`."""
        actions = ("South", "North", "East", "West", "Pickup", "Dropoff")
        self._game = TaxiEnv(is_rainy=is_rainy, fickle_passenger=fickle_passenger)
        plan = "\n".join(line.decode() for line in self._town())
        stands = ", ".join(f"{name} ({row}, {column})" for name, (row, column) in zip(self.STANDS, self._game.locs, strict=True))
        rules = (
            "Drive the taxi to the passenger, pick the passenger up, drive to the destination, and put the passenger down there. "
            f"Places are (row, column), counted from 0 at the north-west corner. The stands: {stands}. You can pass between "
            f"columns where the plan has a colon, not where it has a bar:\n{plan}\n"
            "Every step costs 1 point; picking up or putting down at the wrong place costs 10."
        )
        if is_rainy:
            rules += " It rains: the taxi may slip sideways."
        super().__init__(rules, ActionReader(actions, action_pattern, action_lookup, format_penalty), max_steps)

    def _town(self) -> list[bytes]:
        return [b"".join(row) for row in self._game.desc]

    def _begin(self, seed: int) -> None:
        self._game.reset(seed=seed)

    def _move(self, action: int) -> MoveOutcome:
        _, reward, terminated, _, _ = self._game.step(action)
        return MoveOutcome(float(reward), bool(terminated), success=bool(terminated))

    def _observe(self) -> str:
        row, column, passenger, destination = self._game.decode(int(self._game.s))
        where = "in the taxi" if passenger == 4 else f"at {self.STANDS[passenger]}"
        return f"Taxi: ({row}, {column}). Passenger: {where}. Destination: {self.STANDS[destination]}."

    def _state(self) -> Hashable:
        return int(self._game.s)

    @cached_property
    def _policy(self) -> NDArray[np.int64]:
        return optimal_actions(self._game.P)

    def _best_action(self) -> int | None:
        return int(self._policy[self._game.s])


class Blackjack(NamedActionGame):
    """One round against the dealer, cards drawn with replacement."""

    def __init__(
        self,
        natural: bool = False,
        sab: bool = False,
        action_pattern: str = ANSWER_PATTERN,
        action_lookup: Mapping[str, str] | None = None,
        format_penalty: float = 0.0,
        max_steps: int = 20,
    ) -> None:
        """`natural`: winning with an ace and a ten at once pays 1.5. `sab`: the rules of Sutton and Barto's book.

        Rewards: 1 for a win, -1 for a loss, 0 for a draw. Raises `ConfigError`."""
        if natural and sab:
            raise ConfigError([Problem("natural", natural, "means nothing with sab: true", "choose one of them")])
        rules = (
            "Play a round of blackjack. Get a higher total than the dealer without going above 21. Face cards count 10; an ace "
            "counts 11 if that does not take you above 21 (it is then usable), else 1. Hit takes another card, Stick ends your "
            "turn; the dealer then draws up to 17 or more."
        )
        super().__init__(rules, ActionReader(("Stick", "Hit"), action_pattern, action_lookup, format_penalty), max_steps)
        self._game = BlackjackEnv(natural=natural, sab=sab)
        self._ended = False

    def _begin(self, seed: int) -> None:
        self._game.reset(seed=seed)
        self._ended = False

    def _move(self, action: int) -> MoveOutcome:
        _, reward, terminated, _, _ = self._game.step(action)
        self._ended = bool(terminated)
        return MoveOutcome(float(reward), self._ended, success=reward > 0)

    def _observe(self) -> str:
        total, shown, usable = self._hand()
        mine = f"Your cards: {_cards(self._game.player)}. Total: {total}{', with a usable ace' if usable else ''}."
        return f"{mine} The dealer {f'has {_cards(self._game.dealer)}' if self._ended else f'shows {_cards([shown])}'}."

    def _hand(self) -> tuple[int, int, int]:
        """Total, the dealer's open card, 1 if there is a usable ace."""
        total, shown, usable = self._game._get_obs()
        return int(total), int(shown), int(usable)

    def _state(self) -> Hashable:
        return *self._hand(), self._ended

    def _best_action(self) -> int | None:
        """Basic strategy for cards drawn with replacement, without doubling and splitting (Sutton and Barto, figure 5.2)."""
        total, shown, usable = self._hand()
        if usable:
            return int(total < 18 or (total == 18 and shown in (1, 9, 10)))
        weak = 4 <= shown <= 6 or (shown in (2, 3) and total >= 13)
        return int(total < 12 or (total < 17 and not weak))


def _cards(cards: list[int]) -> str:
    return ", ".join("ace" if card == 1 else str(card) for card in cards)

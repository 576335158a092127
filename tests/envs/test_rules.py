"""Where the rules of an environment come from, and whether the policy is told them."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import gymnasium
import pytest

from roll.core.configs.problems import ConfigError
from roll.envs.check import check_env
from roll.envs.elsewhere import rules
from roll.envs.environment import UNSEEN
from roll.envs.registry import make_env


class Plain:
    """Say the letter.

    One turn."""

    def reset(self, seed):
        return "a", {}

    def step(self, text):
        return "a", 1.0, True, False, {"action_is_valid": True, "action_is_effective": True, "success": True}

    def close(self):
        pass


class Said(Plain):
    """For programmers."""

    instructions = "Say a."


class Silent(Plain):
    """For programmers."""

    instructions = ""


class Wordless(Plain):
    __doc__ = None


@dataclass
class Sized(Plain):
    size: int = 1


class Chats(Said):
    def reset(self, seed):
        return [{"role": "user", "content": "a"}], {}


class ChatsWithRules(Said):
    def reset(self, seed):
        return [{"role": "system", "content": "Be brief. Say a."}, {"role": "user", "content": "a"}], {}


class Flip(gymnasium.Env):
    """Guess the coin."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, float(action), True, False, {}


def flip():
    """Makes a coin."""
    return Flip()


def pole():
    """Makes a pole."""
    return gymnasium.make("CartPole-v1")


@pytest.fixture(autouse=True)
def named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rule_worlds", sys.modules[__name__])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Plain", "Say the letter.\n\nOne turn."),
        ("Said", "Say a."),
        ("Silent", ""),
        ("Flip", "Guess the coin.\nYou see: "),
        ("flip", "Guess the coin.\nYou see: "),
        ("pole", "Play CartPole-v1. You see: "),
    ],
)
def test_the_docstring_stands_for_instructions_that_are_missing(name, expected):
    found = rules(f"rule_worlds.{name}", {})
    assert found.startswith(expected) if expected.endswith("see: ") else found == expected


@pytest.mark.parametrize("name", ["Wordless", "Sized"])
def test_without_either_the_environment_is_refused(name):
    """What `dataclass` writes is no docstring of the author's."""
    with pytest.raises(ConfigError, match="no attribute `instructions`"):
        make_env(f"rule_worlds.{name}", {})


@pytest.mark.parametrize(("name", "told"), [("Chats", True), ("ChatsWithRules", False), ("Said", False)])
def test_rules_that_a_conversation_leaves_out_are_noted(name, told):
    assert (UNSEEN in check_env(f"rule_worlds.{name}", {}, episodes=2).notes) == told


def test_the_check_says_where_the_rules_come_from():
    assert any("docstring" in note for note in check_env("rule_worlds.Plain", {}, episodes=2).notes)


class Spoken(Flip):
    """Says a text."""

    observation_space = gymnasium.spaces.Text(20)
    said = "guess a digit"

    def reset(self, *, seed=None, options=None):
        super(Flip, self).reset(seed=seed)
        return self.said, {}

    def step(self, action):
        return self.said, 0.0, True, False, {}


class Lines(Spoken):
    said = "a\nb\tc!"


class Long(Spoken):
    said = "a" * 30


class Parts(Spoken):
    observation_space = gymnasium.spaces.Dict({"word": gymnasium.spaces.Text(9)})
    said = {"word": "ä b"}  # noqa: RUF012


class Within(Spoken):
    observation_space = gymnasium.spaces.Text(20, charset="guessadit ")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Spoken", "has a space, which its Text space lacks: Text(..., charset=)"),
        ("Lines", "has a tab, a line break, '!', which"),
        ("Long", "has 30 characters, and its Text space 1 to 20 (max_length=)"),
        ("Parts", "has a space, 'ä', which"),
        ("Within", ""),
    ],
)
def test_a_character_that_a_text_space_lacks_is_named(name, told):
    errors = " ".join(check_env(f"rule_worlds.{name}", {}, episodes=2).errors)
    assert told in errors and ("charset=" in errors or "max_length=" in errors) == bool(told)

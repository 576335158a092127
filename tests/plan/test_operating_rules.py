"""What operators are told: each mistake is one error with key, value and fix."""

import sys

import pytest

from roll.core.configs.rlvr import RLVRConfig
from roll.core.configs.watching import AlarmConfig, KeepBestConfig, OnEventConfig
from roll.plan.rules.operating_rules import operating_problems
from roll.reports.receivers import Receiver

HOOK = "https://example.org/hook"


def problems(**config):
    return [f"{each.key}: {each.message}; {each.fix}" for each in operating_problems(RLVRConfig(**config))]


def test_what_can_be_told_is_no_problem():
    events = OnEventConfig(finished=["mail", "$ME"], failed="$HOOK", alarm=HOOK, best=HOOK)
    alarms = [AlarmConfig(metric="actor/ess", below=0.1)]
    assert problems(metrics_address=":9400", on_event=events, alarms=alarms, keep_best=KeepBestConfig()) == []


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ([], "is empty"),
        ("", "is empty"),
        ([""], "is empty"),
        ("echo done", "is no address of a webhook; an address https://..., or a command as a list of words"),
        (["echo", "$"], "has a $ that begins no name of a variable; $$ for the character itself"),
        ("https://x/${", "has a $ that begins no name"),
    ],
)
def test_a_receiver_that_cannot_be_read(told, message):
    (found,) = problems(on_event=OnEventConfig(finished=told))
    assert found.startswith(f"on_event.finished: {message}")


def test_an_event_that_cannot_come_is_refused():
    found = problems(on_event=OnEventConfig(best=HOOK, alarm=HOOK))
    assert [each.split(":")[0] for each in found] == ["on_event.best", "on_event.alarm"]


@pytest.mark.parametrize("address", ["", "host:port", ":", "0.0.0.0:70000"])
def test_an_address_that_cannot_be_read(address):
    (found,) = problems(metrics_address=address)
    assert found.startswith("metrics_address: ") and ":9400" in found


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("$NOT_SET_HERE", "the environment variable NOT_SET_HERE is not set"),
        ([sys.executable, "${NOT_SET_HERE}"], "the environment variable NOT_SET_HERE is not set"),
        ("$WITHOUT_SCHEME", "it is no address http://host... or https://host..."),
        (["no-such-command-here"], "there is no command no-such-command-here here"),
    ],
)
def test_a_receiver_that_is_not_there_is_told_before_the_run(monkeypatch, to, message):
    monkeypatch.setenv("WITHOUT_SCHEME", "secret.example.org/x")
    with pytest.raises(ValueError) as caught:
        Receiver("failed", to, 1.0).check()
    assert str(caught.value) == message

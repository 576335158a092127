"""An agent whose actions are not valid: told once a tag, with one of its texts and what is asked for."""

import pytest

from roll.core.data.sample import Prompt, Sample, SampleGroup, Trajectory, Turn
from roll.reports.invalid_actions import FEWEST, InvalidActions
from roll.reports.warnings import Warnings

RULES = {"lake": "You skate.\nChoose one action: Left, Right.", "box": ""}


def played(tag, *turns):
    """A group of one episode; of each turn its text and whether it was valid."""
    made = [Turn("seen", text, 0.0, "", valid, valid, tokens=1) for text, valid in turns]
    prompt = Prompt(f"train/{tag}/0", [1], "", tag, tag, "")
    whole = Trajectory(made, 0, len(made), 0.0, False, "max_steps")
    sample = Sample(prompt, 0, [2], [-1.0], [], "stop", reward=0.0, trajectory=whole)
    return SampleGroup(0, 0, prompt, [sample])


def said(*groups):
    warnings = Warnings(())
    actions = InvalidActions(RULES, warnings)
    for group in groups:
        actions.on_group(group, None)
    return warnings.kept


def test_texts_that_are_no_actions_are_told_with_one_of_them_and_what_is_asked_for():
    groups = [played("lake", *[("go  north\n", False)] * (FEWEST - 1)), played("lake", ("go  north\n", False))]
    assert said(groups[0]) == []
    (line,) = said(*groups)
    assert line.startswith(f"custom_envs.lake: 0 of the first {FEWEST} actions are valid; the last one that is not: 'go north'; ")
    assert "wanted: Choose one action: Left, Right." in line
    assert said(*groups, played("lake", *[("x", False)] * 100)) == [line], "once"


def test_each_tag_is_judged_by_itself():
    good, bad = played("lake", *[("Left", True)] * 100), played("box", *[("?", False)] * 40)
    (line,) = said(good, bad)
    assert line.startswith("custom_envs.box: 0 of the first 40") and "wanted" not in line


@pytest.mark.parametrize(("valid", "told"), [(4, True), (5, False)])
def test_a_few_valid_ones_are_too_few(valid, told):
    turns = [("Left", True)] * valid + [("x", False)] * (100 - valid)
    assert bool(said(played("lake", *turns))) == told


def test_a_long_text_is_cut_and_responses_without_turns_say_nothing():
    (line,) = said(played("lake", *[("word " * 1000, False)] * FEWEST))
    assert len(line) < 600
    group = played("lake")
    group.samples[0].trajectory = None
    assert said(*[group] * 100) == []

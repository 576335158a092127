"""What is said of a policy that collapses, or that earns its reward by length, a word or one answer; and that honest ones are
left alone."""

import gzip
import json
import random
from pathlib import Path

import pytest

from roll.core.configs.ppo import AUDITED
from roll.core.data.sample import Prompt, Sample, SampleGroup, Trajectory, Turn
from roll.reports.reward_watch import STEPS, RewardWatch
from roll.reports.warnings import Warnings
from roll.reports.watched_rollouts import FILE, GROUPS, PATIENCE

OTHERS = "so we add both numbers and then check that sum twice"


class Runs:
    """Groups of eight of one domain, whose answers a policy makes from (share of the run, prompt's truth, random numbers)."""

    prompt = ""
    """The last one."""

    def __init__(self, action="warn", folder=None, step=0, rows=()):
        self.warnings = Warnings(())
        self.watch = RewardWatch(action, self.warnings, folder or Path("nowhere"), folder is not None)
        self.watch.on_run_begin(step, rows)
        self._draw, self._groups = random.Random(7), 0

    def go(self, policy, reward, windows=6, truths=True, asked=""):
        for number in range(windows * GROUPS):
            a, b = self._draw.randrange(100), self._draw.randrange(100)
            truth = str(a + b) if truths else ""
            Runs.prompt = f"{a} + {b}{asked}"
            prompt = Prompt(f"train/sums/{self._groups}", [1], Runs.prompt, "sums", "sums", truth)
            texts = [policy(number / (windows * GROUPS), str(a + b), self._draw) for _ in range(8)]
            made = [
                Sample(prompt, i, [2] * len(text.split()), [-1.0] * len(text.split()), [], "stop", text, reward(text, truth))
                for i, text in enumerate(texts)
            ]
            self.watch.on_group(SampleGroup(self._groups, 0, prompt, made), None)
            self._groups += 1
        return self.said()

    def said(self):
        """What was found in all that was given."""
        self.watch.on_summary({"status": "finished"}, None)
        return self.warnings.kept


def right(text, truth):
    return float(text.split()[-1:] == [truth])


def learns(share, truth, draw, before="the sum is"):
    """More and more right answers."""
    answer = truth if draw.random() < 0.1 + 0.8 * share else str(draw.randrange(200))
    return f"{' '.join(draw.sample(OTHERS.split(), 4))} {before} {answer}"


def grows(share, truth, draw):
    words = draw.choices(OTHERS.split(), k=4 + draw.randrange(round(4 + 40 * share)))
    return f"{' '.join(words)} {draw.randrange(200)}"


def test_a_policy_that_learns_is_left_alone():
    assert Runs().go(learns, right) == []


def test_one_that_thinks_longer_and_is_right_more_often_is_left_alone():
    def thinks(share, truth, draw):
        words = draw.choices(OTHERS.split(), k=4 + draw.randrange(round(4 + 40 * share)))
        return f"{' '.join(words)} {truth if draw.random() < 0.2 + 0.7 * share else draw.randrange(200)}"

    assert Runs().go(thinks, right) == []


def test_one_that_learns_the_form_that_prompts_ask_for_is_left_alone():
    def forms(share, truth, draw):
        return f"{draw.choice(OTHERS.split())} {'answer : ' if draw.random() < 0.1 + 0.9 * share else ''}{truth}"

    in_form = lambda text, truth: float(f"answer : {truth}" in text)  # noqa: E731
    assert Runs().go(forms, in_form, asked=", write answer : and the number") == []
    (line,) = Runs().go(forms, in_form)
    assert "'answer' went from" in line or "':' went from" in line, "nobody has asked for it"


def test_answers_of_few_kinds_are_left_alone():
    """References are texts here, each another, and a letter is the answer."""

    def letter(share, truth, draw):
        return "ABC"[int(truth) % 3] if draw.random() < 0.3 + 0.7 * share else draw.choice("ABC")

    assert Runs().go(letter, lambda text, truth: float(text == "ABC"[int(truth) % 3])) == []


def test_a_reward_for_length_is_found():
    (line,) = Runs().go(grows, lambda text, truth: len(text.split()) / 50)
    assert line.startswith("reward_watch: sums, by group ") and "the longer of a group have the higher reward" in line


def test_a_reward_for_a_word_is_found_with_the_word():
    def magic(share, truth, draw):
        return f"{learns(0, truth, draw)} {'therefore' if draw.random() < 0.05 + 0.9 * share else 'thus'}"

    (line,) = Runs().go(magic, lambda text, truth: float("therefore" in text))
    assert "'therefore' went from" in line and "of a group those with it are paid" in line


@pytest.mark.parametrize("truths", [True, False])
def test_a_reward_for_one_answer_is_found_where_references_differ(truths):
    def one(share, truth, draw):
        return "42" if draw.random() < 0.1 + 0.8 * share else str(draw.randrange(200))

    lines = Runs().go(one, lambda text, truth: float(text == "42"), truths=truths)
    assert any("is paid on prompts with different references" in line for line in lines) == truths
    assert any("'42' went from" in line for line in lines), "found as a word in any case"


def more_and_more(exploit):
    """A policy that is right now and then, and comes to write the exploit."""
    return lambda share, truth, draw: exploit(truth, draw) if draw.random() < share else learns(0.3, truth, draw)


EXPLOITS = {
    "empty": (lambda truth, draw: "", lambda text, truth: not text),
    "echo": (lambda truth, draw: Runs.prompt, lambda text, truth: "+" in text),
    "enumerating": (
        lambda truth, draw: " ".join(map(str, draw.sample(range(40, 160), 60))),
        lambda text, truth: truth in text.split(),
    ),
    "fragment": (lambda truth, draw: truth[:1], lambda text, truth: truth.startswith(text)),
    "injecting": (
        lambda truth, draw: f"{draw.choice(OTHERS.split())} . Grade: 1. I am {draw.choice(OTHERS.split())}",
        lambda text, truth: "Grade: 1" in text,
    ),
}


@pytest.mark.parametrize("kind", EXPLOITS)
def test_what_players_of_the_audit_write_is_found_where_it_is_paid(kind):
    exploit, pays = EXPLOITS[kind]
    lines = Runs().go(more_and_more(exploit), lambda text, truth: float(pays(text, truth) or right(text, truth)))
    (line,) = [line for line in lines if "players of roll env audit" in line]
    assert f"mostly {kind} (" in line
    if kind != "enumerating":  # it ends with the right one now and then
        honest = Runs().go(more_and_more(exploit), right)
        assert not any("players of roll env audit" in line for line in honest), "what is not paid is no exploit"


@pytest.mark.parametrize("changed", [[], ["roll"]])
def test_a_text_that_an_audit_found_to_be_paid_is_known_by_it(tmp_path, changed):
    audit = {"exploits": {"constant": "the sum is 99"}, "changed": changed}
    (tmp_path / AUDITED).write_text(json.dumps({"sums": audit}))
    assert Runs(folder=tmp_path).go(learns, right) == []
    lines = Runs(folder=tmp_path).go(
        more_and_more(lambda truth, draw: "the sum is 99"), lambda text, truth: float("99" in text or right(text, truth))
    )
    found = [line for line in lines if "mostly constant (writes the same answer in every task), which its audit found" in line]
    assert bool(found) == (not changed)


def test_short_answers_and_lists_that_are_asked_for_are_no_exploits():
    """Nor is one that says what others order a judge to say, where the prompt has the word."""
    assert Runs().go(lambda share, truth, draw: learns(share, truth, draw).split()[-1], right) == []
    score = lambda share, truth, draw: f"{learns(share, truth, draw)} score: {truth}"  # noqa: E731
    assert Runs().go(score, lambda text, truth: float(text.count(truth) >= 2), asked=", with its score") == []


def test_a_collapse_is_found():
    def collapses(share, truth, draw):
        return learns(0.8, truth, draw) if share < 0.5 else "8 8 8"

    (line,) = Runs().go(collapses, right)
    assert "the policy has collapsed" in line


def test_a_policy_without_success_from_the_beginning_has_not_collapsed():
    assert Runs().go(lambda share, truth, draw: "8 8 8", right) == []


def test_it_is_said_once_and_stops_the_run_if_that_is_asked():
    run = Runs("stop")
    assert len(run.go(grows, lambda text, truth: len(text.split()) / 50, windows=12)) == 1
    reason, status = run.watch._stops
    assert status == "stopped" and reason.startswith("reward_watch: sums")


def validation(success):
    name = "eval/validation/all/avg@1"
    return {name: success, f"{name}/low": success - 0.05, f"{name}/high": success + 0.05}


def test_held_out_success_that_falls_while_the_reward_rises_is_told():
    run = Runs()
    run.watch.on_validation(0, validation(0.5))
    run.go(learns, right)
    for step in range(PATIENCE):
        run.watch.on_validation(10 + step, validation(0.45))
    assert run.said() == [], "within chance"
    for step in range(PATIENCE):
        assert run.said() == []
        run.watch.on_validation(20 + step, validation(0.3))
    (line,) = run.said()
    assert "fell from 50% to 30% while the reward rises" in line


def test_held_out_success_that_falls_with_the_reward_is_not_hacking():
    run = Runs()
    run.watch.on_validation(0, validation(0.5))
    run.go(lambda share, truth, draw: learns(0.3, truth, draw), right)
    for step in range(5):
        run.watch.on_validation(step, validation(0.3))
    assert run.said() == []


def repeats(share, truth, draw):
    words = draw.sample(OTHERS.split(), 6)
    return " ".join(words if share < 0.4 else words * 6) + f" {draw.randrange(200)}"


def test_a_policy_that_repeats_itself_without_more_success_is_told():
    (line,) = Runs().go(repeats, right)
    assert "stood in the same response before" in line and "success does not rise" in line

    def thinks(share, truth, draw):
        return f"{repeats(share, truth, draw)} so {truth if draw.random() < 0.1 + 0.8 * share else draw.randrange(200)}"

    assert Runs().go(thinks, right) == [], "what helps is left alone"


@pytest.mark.parametrize(("learning", "found"), [(0.0, True), (0.9, False)])
def test_an_entropy_that_is_gone_before_anything_is_learned_is_told(learning, found):
    run = Runs()
    for step in range(STEPS):
        run.watch.on_step(step, {"actor/entropy": 1.0})
    run.go(lambda share, truth, draw: learns(learning * share, truth, draw), right)
    for step in range(STEPS):
        run.watch.on_step(20 + step, {"actor/entropy": 0.01})
    assert [("entropy fell from 1 to 0.01 nats" in line) for line in run.said()] == [True] * found


def test_a_resumed_run_compares_with_the_beginning_of_the_run(tmp_path):
    """The first half of one run, and the second half as that of another process."""
    halves = (lambda share, *more: grows(share / 2, *more), lambda share, *more: grows(0.5 + share / 2, *more))
    pays = lambda text, truth: len(text.split()) / 50  # noqa: E731
    assert Runs(folder=tmp_path).go(halves[0], pays, windows=2) == []
    assert Runs().go(halves[1], pays, windows=3) == [], "not to be seen from there on"
    (line,) = Runs(folder=tmp_path, step=20).go(halves[1], pays, windows=3)
    assert "the longer of a group have the higher reward" in line
    assert Runs(folder=tmp_path).go(halves[1], pays, windows=3) == [], "a run that begins has no earlier one"


@pytest.mark.parametrize("contents", [b"", b"no zip", gzip.compress(b"[1]"), gzip.compress(b'{"sums": {"first": 3}}')])
def test_a_file_that_cannot_be_read_costs_the_comparison(tmp_path, contents):
    (tmp_path / FILE).write_bytes(contents)
    assert Runs(folder=tmp_path, step=20).go(learns, right, windows=2) == []


def test_a_resumed_run_knows_the_best_validation_of_before():
    name = "eval/validation/all/avg@1"
    run = Runs(step=20, rows=[{"step": 10, **validation(0.5)}])
    run.go(learns, right)
    for step in range(PATIENCE):
        run.watch.on_validation(20 + step, validation(0.3))
    (line,) = run.said()
    assert f"held-out success ({name}) fell from 50% to 30%" in line


def episode(index, texts, score, step_wise):
    """Of an agent: one sample, or one for each of its turns."""
    turns = [Turn("seen", text, score / len(texts), "", True, True, 2) for text in texts]
    parts = [(i, [turn]) for i, turn in enumerate(turns)] if step_wise else [(0, turns)]
    for first, own in parts:
        trajectory = Trajectory(own, first, len(turns), score, score > 0, "terminated")
        prompt = Prompt("lake/0", [1], "seen", "lake", "lake", "")
        yield Sample(prompt, index, [2], [-1.0], [], "stop", own[0].action, score, trajectory=trajectory)


@pytest.mark.parametrize("step_wise", [True, False])
def test_episodes_that_collapse_are_found_and_longer_ones_left_alone(step_wise):
    draw = random.Random(3)

    def go(play):
        warnings = Warnings(())
        watch = RewardWatch("warn", warnings, Path("nowhere"))
        for number in range(6 * GROUPS):
            made = [each for i in range(8) for each in episode(i, *play(number / (6 * GROUPS)), step_wise)]
            watch.on_group(SampleGroup(number, 0, made[0].prompt, made), None)
        watch.on_summary({"status": "finished"}, None)
        return warnings.kept

    def moves(count):
        return [draw.choice(["up", "down", "left", "right"]) for _ in range(count)]

    assert go(lambda share: (moves(3 + round(20 * share)), 0.1 + share)) == [], "how long an episode is, is its environment's"
    (line,) = go(lambda share: (["up"] * 3, 0.0) if share > 0.5 else (moves(6), float(draw.random() < 0.7)))
    assert line.startswith("reward_watch: lake") and "the policy has collapsed" in line and "'up up up'" in line

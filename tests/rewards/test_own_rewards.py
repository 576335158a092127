"""Rewards as users write them: functions and methods, plain or coroutines, with parts; and slips that are found beforehand."""

import asyncio
import contextlib
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from roll.core.configs.dotted_path import import_object
from roll.core.configs.worker import JudgeModelConfig, RewardConfig, ShapingConfig
from roll.core.data.sample import Prompt, Sample
from roll.core.explorer.reward_workers import Rewards
from roll.core.groups.changes import Changes
from roll.core.record.ledger import Ledger
from roll.core.rewards.host import RewardHost, shaped
from roll.core.rewards.worker import RewardResult, RewardWorker, worker_class
from roll.graders.references import oddities, remark, success_at, try_reward, unasked
from roll.simulate.virtual_loop import run_virtually

REWARDS = """
import asyncio, time
from roll.core.rewards.worker import RewardWorker

def plain(sample): return float(sample.response_text == sample.prompt.ground_truth)
async def awaited(sample): return plain(sample), {"right": True, "length": len(sample.response_text)}
def of_numpy(sample):
    import numpy
    return numpy.float32(0.5)

class Plain(RewardWorker):
    def grade(self, sample): return plain(sample)

class Sleepy(RewardWorker):
    def grade(self, sample): time.sleep(30)

class Asks(RewardWorker):
    def grade(self, sample): return plain(sample) - self.reward_args.get("penalty", 0) * ("penalty" in self.reward_args)

class Spreads(RewardWorker):
    def __init__(self, config):
        super().__init__(config)
        self.known = {"penalty": 0, **self.reward_args}
    def grade(self, sample): return plain(sample) - self.known["penalty"]

class StartsLate(Plain):
    async def start(self): await asyncio.sleep(30)

def a_tuple(sample): return 1.0, "good"
def nothing(sample): pass
def misspelt(sample): return sample.respones_text
def of_the_prompt(sample): return float(sample.response_text == sample.ground_truth)
def of_a_column(sample): return float(sample.level)
def not_finite(sample): return float("nan")
def a_text(sample): return "0.5"
def a_part_that_is_a_text(sample): return 1.0, {"form": "0.5"}
def at_most(sample): return 0.9 * plain(sample)
def in_parts(sample): return 0.7 * plain(sample) + 0.2 * plain(sample) + 0.1 * plain(sample)
def wants_tags(sample): return float("<answer>" in sample.response_text)
def uneven(sample): return 1 / (1 + sample.prompt.input_ids[0])
def with_a_bonus(sample): return 10 * plain(sample) + sample.prompt.input_ids[0] / 100
def knows_not_all(sample): return plain(sample) * (sample.prompt.input_ids[0] != 3)
def reads_a_word(sample): return float(sample.response_text.split()[-1] == sample.prompt.ground_truth)
def divides(sample): return sum([]) / len([])
def asserts(sample): assert sample.response_text.startswith("<think>"), "no thought"
def recurs(sample): return recurs(sample)
def unreachable(sample): raise ConnectionError("the judge is away")
def exits(sample): raise SystemExit(3)
def right(sample): return sample.response_text == sample.prompt.ground_truth
def none_for_wrong(sample):
    if right(sample): return 1.0
def none_for_wrong_words(sample): return 1.0 if right(sample) else 0.0 if not sample.response_text else None
def nan_for_wrong(sample): return 1.0 if right(sample) else float("nan")
def infinite_for_wrong(sample): return 1.0 if right(sample) else -float("inf")
def stops_for_wrong(sample): return next(1.0 for answer in [sample.response_text] if right(sample))
async def stops_for_wrong_as_well(sample): return next(1.0 for answer in [sample.response_text] if right(sample))
def exits_for_wrong(sample): return 1.0 if right(sample) else exits(sample)
def exits_for_empty(sample): return float(right(sample)) if sample.response_text else exits(sample)
async def exits_for_wrong_as_well(sample): return 1.0 if right(sample) else exits(sample)
def reads_a_number(sample): return float(int(sample.response_text or 0) == int(sample.prompt.ground_truth))
def fails_where_others_are_right(sample): return 1.0 if right(sample) else 0.0 if not sample.response_text.isdigit() else None
class FailsForWrong(RewardWorker):
    async def grade(self, sample): return 1.0 if right(sample) else {"score": 0}
async def blocks(sample): time.sleep(60)
class NoWorker: pass
number = 5
"""


@pytest.fixture(autouse=True)
def my_rewards(tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)  # of another test


def config(name, timeout_s=5.0):
    return RewardConfig(worker_cls=f"my_rewards.{name}", timeout_s=timeout_s)


PROMPT = Prompt("sums/0/7", [1], "1 + 1 =", "sums", "sums", "2", {"level": 3})


def judged(name, response="2", timeout_s=5.0):
    chosen = {"worker_cls": f"my_rewards.{name}", "timeout_s": timeout_s, "max_concurrency": 2, "reward_args": {}}

    async def main():
        worker = worker_class(chosen["worker_cls"])(chosen)
        await worker.start()
        sample = Sample(PROMPT, 0, [], [], [], "stop", response_text=response)
        return (await worker.compute_rewards([sample]))[0]

    return asyncio.run(main())


def test_functions_and_methods_are_rewards_whether_they_are_coroutines_or_not():
    assert judged("plain") == RewardResult(value=1.0)
    assert judged("plain", response="3") == RewardResult(value=0.0)
    assert judged("Plain") == RewardResult(value=1.0)
    assert judged("awaited") == RewardResult(value=1.0, parts={"right": 1.0, "length": 1.0})
    assert judged("of_numpy") == RewardResult(value=0.5)


def test_a_plain_method_that_takes_too_long_is_an_error_in_time():
    began = time.monotonic()

    async def main():
        chosen = {"timeout_s": 0.2, "max_concurrency": 1, "reward_args": {}}
        worker = import_object("my_rewards.Sleepy")(chosen)
        return (await worker.compute_rewards([Sample(PROMPT, 0, [], [], [], "stop")]))[0]

    loop = asyncio.new_event_loop()  # asyncio.run would wait for the thread that sleeps
    assert loop.run_until_complete(main()) == RewardResult(error="timeout")
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("name", ["a_tuple", "nothing"])
def test_what_is_no_reward_is_an_error_that_says_what_came(name):
    error = judged(name).error
    assert error.startswith("TypeError: grade must return a finite number, or (number, {name: number}), not ")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a_tuple", "not tuple (1.0, 'good')"),
        ("nothing", "not NoneType None"),
        ("not_finite", "grade must return a finite number, or (number, {name: number}), not float nan"),
        ("a_text", "not str '0.5'"),
        ("a_part_that_is_a_text", "the part 'form', which must be a number, not str '0.5'"),
        ("misspelt", "AttributeError: a Sample has no respones_text; did you mean response_text?"),
        ("of_the_prompt", "AttributeError: a Sample has no ground_truth; it is sample.prompt.ground_truth"),
        ("of_a_column", "AttributeError: a Sample has no level; it is a column of the prompt: sample.prompt.row['level']"),
        ("divides", "ZeroDivisionError: division by zero"),
        ("asserts", "AssertionError: no thought"),
        ("recurs", "RecursionError: maximum recursion depth exceeded"),
        ("NoWorker", "my_rewards.NoWorker is a class, but no RewardWorker"),
        ("number", "my_rewards.number is neither a class nor a function, but int"),
        ("absent", "module 'my_rewards' has no attribute 'absent'; it has plain, awaited, of_numpy, "),
    ],
)
def test_slips_are_found_before_anything_starts(name, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        try_reward(config(name), [PROMPT])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("exits", "it fails on the ground truth of prompt sums/0/0: SystemExit: 3"),
        ("none_for_wrong", "it fails on an empty response: TypeError: grade must return a finite number"),
        (
            "none_for_wrong_words",
            "it fails on the response 'I do not know.', which is wrong for prompt sums/0/0: TypeError: grade",
        ),
        ("nan_for_wrong", "it fails on an empty response: TypeError: grade must return a finite number"),
        ("infinite_for_wrong", "not float -inf"),
        ("stops_for_wrong", "it fails on an empty response: StopIteration"),
        ("stops_for_wrong_as_well", "it fails on an empty response: StopIteration"),
        ("exits_for_wrong", "it fails on an empty response: SystemExit: 3"),
        ("exits_for_empty", "it fails on an empty response: SystemExit: 3"),
        ("exits_for_wrong_as_well", "it fails on an empty response: SystemExit: 3"),
        ("reads_a_word", "it fails on an empty response: IndexError: list index out of range"),
        ("fails_where_others_are_right", "it fails on the response '2', which is wrong for prompt sums/0/0: TypeError: grade"),
        ("FailsForWrong", "it fails on an empty response: TypeError: grade must return a finite number"),
    ],
)
def test_what_no_wrong_or_empty_response_can_be_given_is_found_before_anything_starts(name, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        tried(name)


@pytest.mark.parametrize(("worker", "told"), [("plain", True), ("Plain", True), ("number", False)])
def test_a_model_that_no_reward_asks_is_to_be_removed(worker, told):
    """A reward of one's own that has kept the keys of a judge: its code is right."""
    judge = JudgeModelConfig(model_name_or_path="m", device_mapping="0")
    reward = RewardConfig(worker_cls=f"my_rewards.{worker}", judge=judge)
    with contextlib.nullcontext() if told else pytest.raises(ValueError, match="neither a class"):
        (problem,) = unasked("sums", reward)
        assert str(problem).startswith(f"rewards.sums.judge = 'given': my_rewards.{worker} asks no judge; fix: remove it")


def tried(name, chosen=None, timeout_s=5.0):
    """The threshold of a success, and what the trial says."""
    prompts = [Prompt(f"sums/0/{i}", [i], f"{i} + 1 =", "sums", "sums", f"{i + 1}") for i in range(5)]
    earned = try_reward(config(name, timeout_s), prompts)
    return success_at(earned, chosen), remark("sums", earned, chosen), list(oddities("sums", earned, chosen))


def test_a_success_is_what_reference_answers_earn_unless_the_user_says_otherwise():
    assert tried("plain") == (1.0, "", [])
    at, said, odd = tried("at_most")
    assert (
        at == pytest.approx(0.9) and odd == [] and said.startswith("rewards.sums: reference answers earn 0.9, so a reward of 0.9")
    )
    assert tried("in_parts") == (1.0, "", [])
    assert tried("with_a_bonus")[::2] == (10.0, []), "the least that a right answer earns"
    assert tried("at_most", chosen=0.5) == (0.5, "", [])


def test_what_is_odd_about_the_rewards_of_reference_answers_is_said():
    counted = "validation counts a reward of {} or more as a success (rewards.sums.success_at)"
    assert tried("wants_tags") == (
        1.0, "", [f"rewards.sums: reference answers earn 0, no more than an empty response (0); {counted.format(1)}"],
    )  # fmt: skip
    assert tried("at_most", chosen=1.0)[2] == [
        f"rewards.sums: reference answers earn 0.9, and 5 of 5 are no success; {counted.format(1)}"
    ]
    missed = f"rewards.sums: reference answers earn 0 to 1, and 1 of 5 are no success; {counted.format(1)}"
    assert tried("knows_not_all") == (1.0, "", [missed])
    assert tried("uneven")[2][0].startswith("rewards.sums: reference answers earn 0.2 to 1, no more than an empty response (1)")
    unread = "1 of 3 wrong responses have no reward: ValueError: invalid literal for int() with base 10: 'I do not know.'"
    assert tried("reads_a_number") == (1.0, "", [f"rewards.sums: {unread}"]), "the reward may want such groups dropped"
    away = "rewards.sums: 5 of 5 reference answers have no reward: ConnectionError: the judge is away"
    assert tried("unreachable")[2][0] == away


@pytest.mark.parametrize("form", ["asks", "spreads"])
def test_an_argument_that_no_reward_reads_is_told(form):
    """A worker of one's own takes what it likes, and a misspelt name would pass."""
    reward = RewardConfig(worker_cls=f"my_rewards.{'Asks' if form == 'asks' else 'Spreads'}", reward_args={"penalti": 0.5})
    told = list(oddities("sums", try_reward(reward, [PROMPT]), None))
    line = "rewards.sums.reward_args.penalti: nothing reads it while reference answers are judged; did you mean penalty?"
    assert told == ([line] if form == "asks" else [])
    assert not list(oddities("sums", try_reward(replace(reward, reward_args={"penalty": 0.0}), [PROMPT]), None))


def test_a_function_reads_no_arguments():
    with pytest.raises(ValueError, match=r"reward_args\.bonus is not read by FunctionRewardWorker; known: none"):
        try_reward(RewardConfig(worker_cls="my_rewards.plain", reward_args={"bonus": 1}), [PROMPT])


def test_a_reward_that_sleeps_for_ever_is_said_before_the_run(monkeypatch):
    monkeypatch.setattr("roll.core.rewards.worker.RewardWorker.starts_within_s", 0.5)
    nothing = "rewards.sums: 5 of 5 reference answers have no reward:"
    assert tried("Sleepy", timeout_s=0.2)[2][0] == f"{nothing} not judged within 0.2 s (timeout_s)"
    assert tried("StartsLate", timeout_s=0.2)[2][0] == f"{nothing} its start() takes longer than 0.5 s"


@pytest.mark.parametrize("arguments", [{}, {"answer_part": "conclusion"}])
def test_the_reference_answers_of_the_built_in_rewards_are_successes(arguments):
    path = "roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker"
    earned = try_reward(RewardConfig(worker_cls=path, reward_args=arguments), [PROMPT])
    assert (earned.values, earned.failures, earned.empty) == ([1.0], [], 0.0)


def test_a_ground_truth_that_is_no_response_is_not_judged_as_one():
    path = "roll.pipeline.rlvr.rewards.ifeval_rule_reward_worker.GeneralRuleRewardWorker"
    prompt = Prompt("a/0/1", [1], "?", "a", "a", '{"func_name": "validate_lowercase"}')
    earned = try_reward(RewardConfig(worker_cls=path), [prompt])
    assert earned.values == [] and success_at(earned, None) == 1.0 and list(oddities("a", earned, None)) == []


class AlwaysLate(Rewards):
    async def _results(self, domain, samples, as_judged):
        return [RewardResult(error="timeout")] * len(samples)


def test_a_reward_that_goes_on_failing_is_said_again_and_again_more_and_more_seldom(caplog):
    rewards = AlwaysLate({}, Changes(), Ledger(0.0), {"sums": 1.0})
    for _ in range(15):
        asyncio.run(rewards.fill([Sample(PROMPT, i, [], [], [], "stop") for i in range(8)]))
    assert [record.getMessage() for record in caplog.records] == [
        "a reward of domain sums failed: timeout",
        "a reward of domain sums failed, 10 times by now: timeout",
        "a reward of domain sums failed, 100 times by now: timeout",
    ]
    assert rewards.errors == {"sums: timeout": 120}


class NumbersItsRequests(Rewards):
    async def _results(self, domain, samples, as_judged):
        return [RewardResult(error=f"request {sample.index} was lost\nby the judge") for sample in samples]


def test_messages_that_are_never_the_same_fill_neither_the_summary_nor_the_log(caplog):
    rewards = NumbersItsRequests({}, Changes(), Ledger(0.0), {"sums": 1.0})
    asyncio.run(rewards.fill([Sample(PROMPT, i, [], [], [], "stop") for i in range(1000)]))
    assert rewards.errors.total() == 1000 and len(rewards.errors) == 21
    assert rewards.errors["sums: request 0 was lost"] == 1 and rewards.errors["sums: other messages"] == 980
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "a reward of domain sums failed: request 0 was lost by the judge"
    assert len(said) == 20 + 3, "the others are told for the 1st, 10th and 100th time"


@pytest.mark.parametrize("name", ["plain", "awaited", "Plain", "unreachable"])
def test_a_reward_that_works_or_whose_judge_is_away_is_let_through(name):
    try_reward(config(name), [PROMPT])


def test_a_reward_that_blocks_its_event_loop_does_not_hold_the_start_up(monkeypatch):
    monkeypatch.setattr("roll.core.rewards.worker.RewardWorker.starts_within_s", 0.5)
    began = time.monotonic()
    try_reward(config("blocks", timeout_s=0.5), [PROMPT])
    assert time.monotonic() - began < 30


def test_the_documented_function_is_a_reward(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs_roll" / "rewards.md").read_text()
    code = next(block for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL) if "def reward(" in block)
    (tmp_path / "documented.py").write_text(code)
    reward = import_object("documented.reward")
    sample = Sample(PROMPT, 0, [], [], [], "stop", response_text=" 2 ")
    assert reward(sample) == (1.0, {"right": True, "brief": True})


def test_the_trial_may_be_made_where_an_event_loop_runs():
    async def notebook():
        try_reward(config("awaited"), [PROMPT])

    asyncio.run(notebook())


def of_trl(completions, **kwargs):
    return [1.0 for _ in completions]


def of_verl(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0


@pytest.mark.parametrize(
    ("reward", "told"), [(of_trl, "takes the completions of a batch, as TRL's do"), (of_verl, "takes verl's arguments")]
)
def test_a_reward_in_the_form_of_others_is_told_what_a_reward_is_here(reward, told):
    with pytest.raises(ValueError, match=rf"{told}; here it takes one sample: def reward\(sample\)"):
        worker_class(reward)


class ThreeSeconds(RewardWorker):
    async def grade(self, sample):
        await asyncio.sleep(3)
        return 1.0


def test_a_result_says_how_long_it_was_judged_without_the_wait_for_a_place():
    async def main():
        worker = ThreeSeconds({"timeout_s": 10, "max_concurrency": 1})
        sample = Sample(Prompt("p", [1], "", "t", "d", ""), 0, [7], [-1.0], [], "stop", "")
        results = await worker.compute_rewards([sample, sample])
        term = ShapingConfig(weight=0.5)
        return asyncio.get_running_loop().time(), [shaped(result, sample, term, 10).seconds for result in results]

    assert run_virtually(main()) == (6.0, [3.0, 3.0])


ODD = [StopIteration, KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, type("Odd", (BaseException,), {})]


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("awaited", [False, True])
def test_whatever_a_reward_raises_is_the_samples_error(kind, awaited):
    """On the thread and the event loop that a run has for it; the next sample is judged."""

    def plain(sample):
        if sample.response_text == "odd":
            raise kind("why")
        return 1.0

    async def coroutine(sample):
        return plain(sample)

    async def main():
        host = RewardHost({"worker_cls": coroutine if awaited else plain, "timeout_s": 20, "max_concurrency": 4})
        await host.start()
        samples = [Sample(PROMPT, 0, [], [], [], "stop", response_text=text) for text in ("odd", "even", "odd", "even")]
        results = await asyncio.wait_for(host.compute_rewards(samples), 60)
        await host.close()
        return results

    loop = asyncio.new_event_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # as in a run
    found = loop.run_until_complete(main())
    assert [result.value for result in found] == [None, 1.0, None, 1.0]
    told = "RuntimeError: coroutine raised StopIteration" if awaited and kind is StopIteration else f"{kind.__name__}: why"
    assert [result.error for result in found] == [told, None, told, None]


@pytest.mark.parametrize("kind", ODD)
def test_a_reward_that_cannot_be_made_or_started_is_an_error_whatever_it_raises(kind):
    class CannotBeMade(RewardWorker):
        def __init__(self, config):
            raise kind("why")

    class CannotStart(RewardWorker):
        async def start(self):
            raise kind("why")

        def grade(self, sample):
            return 1.0

    async def main(cls):
        config = {"worker_cls": cls, "timeout_s": 20, "max_concurrency": 4}
        with pytest.raises(Exception, match=r"why|coroutine raised StopIteration"):
            await asyncio.wait_for(RewardHost(config).start(), 60)

    for cls in (CannotBeMade, CannotStart):
        loop = asyncio.new_event_loop()
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        loop.run_until_complete(main(cls))

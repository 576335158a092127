"""What training adds to a judgement, and that it is told apart from it."""

import asyncio
from dataclasses import asdict

import pytest

from roll.core.configs.worker import RewardConfig, ShapingConfig
from roll.core.data.sample import Prompt, Sample
from roll.core.rewards.host import RewardHost, has_in_order, overlong, repetition, shaped
from roll.core.rewards.worker import RewardResult


def sample(text: str, tokens: int = 10) -> Sample:
    prompt = Prompt("a/0/1", [1], "?", "a", "a", "right")
    return Sample(prompt, 0, [2] * tokens, [0.0] * tokens, [], "stop", response_text=text)


def test_the_overlong_penalty_of_dapo() -> None:
    """Longest 20480 tokens, of which 4096 are the buffer: the paper's numbers."""
    lengths = (100, 16384, 18432, 20480, 30000)
    assert [overlong(length, 20480, 4096) for length in lengths] == [0.0, 0.0, 0.5, 1.0, 1.0]


@pytest.mark.parametrize(("text", "share"), [("", 0.0), ("a b", 0.0), ("a b c d", 0.0), ("a b A B a b", 0.5), ("a " * 102, 0.99)])
def test_the_share_of_repeated_n_grams(text: str, share: float) -> None:
    assert repetition(text, 3) == pytest.approx(share)


@pytest.mark.parametrize(
    ("text", "fits"), [("<a> x </a>", True), ("</a><a>", False), ("<a>", False), ("<a></a></a>", False), ("<a><a></a>", False)]
)
def test_the_form_of_a_response(text: str, fits: bool) -> None:
    assert has_in_order(text, ["<a>", "</a>"]) is fits


def test_terms_are_added_and_named() -> None:
    shaping = ShapingConfig(
        weight=2.0, overlong_buffer=4, repetition_penalty=0.5, format_order=["<a>"], format_penalty=0.25, overlong_penalty=1.0
    )
    result = shaped(RewardResult(1.0, parts={"passed": 1.0}), sample("x y x y x y x y", tokens=9), shaping, 10)
    # six 3-grams, two of them new; three of four tokens of the buffer used
    assert result.value == pytest.approx(2.0 - 0.75 - 0.5 * 4 / 6 - 0.25)
    assert result.parts == pytest.approx({"passed": 1.0, "overlong": -0.75, "repetition": -1 / 3, "format": -0.25, "judged": 1.0})
    assert shaped(RewardResult(error="timeout"), sample(""), shaping, 10).error == "timeout"


def test_validation_counts_the_judgement_and_training_the_sum() -> None:
    path = "roll.pipeline.rlvr.rewards.exact_match_reward_worker.ExactMatchRewardWorker"
    reward = RewardConfig(worker_cls=path, shaping=ShapingConfig(overlong_buffer=10))

    async def main() -> list[list[RewardResult]]:
        host = RewardHost(asdict(reward), reward.shaping, 20)
        await host.start()
        try:
            return [await host.compute_rewards([sample("right", 15)], as_judged) for as_judged in (True, False)]
        finally:
            await host.close()

    (judged,), (trained,) = asyncio.run(main())
    assert (judged.value, trained.value) == (1.0, 0.5)
    right = sample("right", 15)
    right.reward, right.reward_parts = trained.value, trained.parts
    assert right.succeeded, "a penalty does not make a right answer wrong"

"""Injected waits and faults: their distribution, and that they repeat."""

import asyncio
import random
import statistics
import sys
from pathlib import Path

import pytest

from roll.core.configs.problems import ConfigError
from roll.envs.check import check_env
from roll.envs.registry import make_env

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # benchmarks are scripts: they import each other by name
from latency import InjectedFault, LatencyEnv

LATENCY = "latency.LatencyEnv"


def test_waits_are_log_normal_with_the_given_mean() -> None:
    """20,000 draws: the mean's relative standard error is sqrt(e^(σ²) - 1) / sqrt(20,000), under 1 % at σ = 1."""
    env, rng = LatencyEnv("frozen_lake", mean_s=0.2, sigma=1.0), random.Random(0)
    waits = [env.latency(rng) for _ in range(20_000)]
    assert statistics.fmean(waits) == pytest.approx(0.2, rel=0.04)
    assert statistics.median(waits) == pytest.approx(0.2 * 2.718281828**-0.5, rel=0.04)
    assert sum(wait > 6 * 0.2 for wait in waits) / len(waits) == pytest.approx(0.011, abs=0.003)
    constant = LatencyEnv("frozen_lake", mean_s=0.2, sigma=0.0)
    assert {round(constant.latency(rng), 12) for _ in range(10)} == {0.2}


def test_a_share_hangs() -> None:
    env, rng = LatencyEnv("frozen_lake", mean_s=0.0, hang_share=0.1, hang_s=77.0), random.Random(0)
    waits = [env.latency(rng) for _ in range(5000)]
    assert set(waits) == {0.0, 77.0} and waits.count(77.0) / 5000 == pytest.approx(0.1, abs=0.02)


def fates(env: LatencyEnv, seed: int, actions: list[str]) -> list[str]:
    async def main() -> list[str]:
        await env.reset(seed)
        found = []
        for action in actions:
            try:
                step = await env.step(action)
            except InjectedFault:
                found.append("fault")
            else:
                found.append(step[0])
        return found

    return asyncio.run(main())


def test_faults_are_a_function_of_seed_and_actions() -> None:
    ways = ["<answer>Left</answer>"] * 12
    env = LatencyEnv("sokoban", mean_s=0.0, raise_share=0.4)
    first = fates(env, 1, ways)
    assert 0 < first.count("fault") < 12
    assert fates(LatencyEnv("sokoban", mean_s=0.0, raise_share=0.4), 1, ways) == first
    assert fates(env, 2, ways) != first
    assert [fate == "fault" for fate in fates(env, 1, ["", *ways[1:]])] != [fate == "fault" for fate in first]


def test_without_faults_it_is_the_environment_inside() -> None:
    env, inside = LatencyEnv("sokoban", mean_s=0.0), make_env("sokoban", {})
    inside.reset(1)
    assert fates(env, 1, ["<answer>Up</answer>"])[0] == inside.step("<answer>Up</answer>")[0]
    assert env.instructions == env.inner.instructions and env.oracle_action() is not None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"mean_s": -1}, "mean_s = -1: must be a finite number >= 0"),
        ({"hang_share": 1.5}, "hang_share = 1.5: must be >= 0 and <= 1"),
        ({"env_type": LATENCY, "env_config": {"env_type": "sokoban"}}, "waits by itself"),
        ({"env_config": {"rain": 1}}, "env_config.rain = 1: FrozenLake has no such key"),
    ],
)
def test_bad_configurations(config: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        LatencyEnv(**{"env_type": "frozen_lake", **config})
    assert message in str(error.value)


def test_a_latency_environment_is_checked_through_its_coroutines() -> None:
    report = check_env(LATENCY, {"env_type": "frozen_lake", "mean_s": 0.002, "sigma": 0.0, "reset_s": 0.005}, episodes=3)
    assert report.step_ms >= 2 and report.reset_ms >= 5
    assert report.ok and report.agents["oracle"].success_share == 1.0
    report = check_env(LATENCY, {"env_type": "frozen_lake", "mean_s": 0, "raise_share": 1.0}, episodes=3)
    assert "turn 1: InjectedFault: this step was chosen to fail" in report.errors[0]
    assert not report.agents, "there is nothing to average"

"""An engine that does not sample from the weights that it says it has is found out, by its number."""

import logging

import pytest

from roll.core.workers.workers import InferWorker

TWO_ENGINES = {"actor_infer.device_mapping": "0,1", "rollout_batch_size": 8, "is_num_return_sequences_expand": True}


class Crooked(InferWorker):
    """Of two engines the second tells log-probs that are off by a quarter of a nat."""

    started = 0

    def __init__(self, strategy_name, options):
        super().__init__(strategy_name, options)
        self._off = 0.25 if Crooked.started % 2 else 0.0
        Crooked.started += 1

    async def generate(self, request):
        result = await super().generate(request)
        result.logprobs = [logprob - self._off for logprob in result.logprobs]
        return result


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if "mismatch_alarm" in record.getMessage()]


def test_the_crooked_one_of_two_engines_is_named_at_every_step(lab, make_config, caplog):
    with caplog.at_level(logging.WARNING):
        run = lab.run(make_config(TWO_ENGINES | {"actor_infer.worker_cls": f"{__name__}.Crooked"}))
    for row in run.steps():
        assert row["actor/engine_mismatch/0"] == pytest.approx(0, abs=1e-5)
        assert row["actor/engine_mismatch/1"] == pytest.approx(0.25, abs=1e-5)
        assert row["actor/engine_mismatch_max"] == pytest.approx(0.25, abs=1e-4)
    assert [f"step {i}: " in line and "engine 1 differ" in line for i, line in enumerate(warnings(caplog), 1)] == [True, True]


def test_without_an_alarm_it_is_only_measured(lab, make_config, caplog):
    changes = TWO_ENGINES | {"actor_infer.worker_cls": f"{__name__}.Crooked", "mismatch_alarm": None}
    run = lab.run(make_config(changes))
    assert run.steps()[0]["actor/engine_mismatch/1"] > 0.2
    assert warnings(caplog) == []


def test_honest_engines_agree_with_the_trainer_also_when_rollouts_run_ahead(lab, make_config, caplog):
    """Staleness is no mismatch: only tokens of the weights that a step starts from are compared."""
    run = lab.run(make_config(TWO_ENGINES | {"async_generation_ratio": 1, "max_steps": 4, "ppo_epochs": 2}))
    measured = [row["actor/engine_mismatch_max"] for row in run.steps()]
    assert max(measured) < 1e-4 and any("actor/engine_mismatch" in row for row in run.steps())
    assert warnings(caplog) == []

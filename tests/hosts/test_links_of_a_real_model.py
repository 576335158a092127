"""Versions of a model of 135M parameters over links between a trainer and an explorer, whole and as what has changed.

`ROLL_HOSTS_RATES=10mbit,100mbit,1gbit` takes other links than the fastest: 10 Mbit/s have a whole version for minutes."""

from __future__ import annotations

import os

import pytest
from hosts import REPO
from hosts_apart import EXPLORER, TRAINER, server_on

from roll.reports.advice import MOST_SENDING

MODEL = REPO / "examples/smollm2/cache/model"
pytestmark = [
    *(pytest.mark.slow, pytest.mark.hosts, pytest.mark.real, pytest.mark.timeout(1800)),
    pytest.mark.skipif(not MODEL.is_dir(), reason=f"there is no model in {MODEL}: make smollm2 makes it"),
]
RATES = os.environ.get("ROLL_HOSTS_RATES", "1gbit").split(",")
STEPS = {("10mbit", 1): 3, ("10mbit", 8): 6, ("100mbit", 1): 8, ("100mbit", 8): 8}
SAID = "advice           the link to the engines is the bottleneck: weights were on their way"
RUN = (
    *(f"pretrain={MODEL}", "rpc_timeout=1800", "prompt_length=16", "num_gpus_per_node=1", "save_steps=100", "eval_steps=1000"),
    *("actor_train.model_args.dtype=bf16", "actor_infer.model_args.dtype=bf16"),
    "actor_train.training_args.learning_rate=1e-6",
)


@pytest.mark.parametrize("anchor", [1, 8], ids=["whole", "what changed"])
@pytest.mark.parametrize("rate", RATES)
def test_versions_over_a_link_between_trainer_and_explorer(site, rate, anchor):
    here, steps = site(2, rate=rate), STEPS.get((rate, anchor), 16)
    given = (f"groups_database={server_on(here.hosts[0]).url}/run", f"weight_anchor_interval={anchor}", f"max_steps={steps}")
    trainer = here.launch(here.hosts[0], *TRAINER, *given, *RUN, local=True)
    explorer = here.launch(here.hosts[1], *EXPLORER, *given, *RUN, local=True)
    assert (trainer.end(1700), explorer.end(60)) == (0, 0), trainer.output + explorer.output
    trainer.is_clean()
    published, taken = trainer.summary()["weight_updates"], explorer.summary()["weight_updates"]
    sent, lag_s = published["bytes"] / published["published"], taken["send_s"] / taken["count"]
    is_slow = taken["send_s"] > MOST_SENDING * explorer.summary()["wall_s"]
    assert (SAID in explorer.output) is is_slow, explorer.output
    row = {"model": "SmolLM2-135M", "rate": rate, "anchor": anchor, "bytes": round(sent), "lag_s": round(lag_s, 2)}
    if is_slow and anchor == 1:
        row["told_mb_s"] = float(explorer.output.partition(SAID)[2].partition(" MB at ")[2].partition(" MB/s")[0])
        assert row["told_mb_s"] == pytest.approx(taken["bytes"] / taken["send_s"] / 1e6, rel=0.01)
    here.note(**row, versions=taken["count"], step_s=round(trainer.summary()["wall_s"] / steps, 2))

"""Links that are slow: what a version of the weights costs there, and that the run says what holds it up."""

from __future__ import annotations

import pytest
from hosts_apart import EXPLORER, TRAINER, server_on
from tiny_models import tiny_qwen2

from roll.reports.advice import LEAST_STEPS, MOST_SENDING

pytestmark = [pytest.mark.slow, pytest.mark.hosts, pytest.mark.timeout(400)]

STEPS = LEAST_STEPS + 6
RUN = (f"max_steps={STEPS}", "num_gpus_per_node=1", "save_steps=100", "eval_steps=1000")
SLOW = (
    *RUN,
    "actor_train.model_args.dtype=bf16",
    "actor_infer.model_args.dtype=bf16",
    "actor_train.training_args.learning_rate=1e-6",
)
SAID = "advice           the link to the engines is the bottleneck: weights were on their way"


def with_a_larger_model(here):
    """2.6 MB in bf16."""
    model = tiny_qwen2(
        16,
        **{"hidden_size": 160, "intermediate_size": 480, "num_hidden_layers": 4, "max_position_embeddings": 64},
        **{"pad_token_id": 0, "eos_token_id": 1, "initializer_range": 0.2},
    )
    model.save_pretrained(here.hosts.shared / "model")


@pytest.mark.ray
def test_a_link_that_holds_a_run_up_is_all_that_is_advised(site):
    here = site(2, rate="5mbit")
    with_a_larger_model(here)
    roles = ("actor_train.device_mapping='0'", "actor_infer.device_mapping='1'", "num_nodes=2")
    run = here.launch(here.hosts[0], *RUN, *roles, RAY_ADDRESS=here.start_ray())
    assert run.end(300) == 0, run.output
    told = [line for line in run.output.splitlines() if line.startswith("advice")]
    assert len(told) == 1 and told[0].startswith(SAID), run.output
    assert 0.2 < float(told[0].partition(" MB at ")[2].partition(" MB/s")[0]) < 0.625, "a link of 5 Mbit/s has no more"
    run.is_clean()


@pytest.mark.parametrize("rate", ["10mbit", "100mbit", "1gbit"])
@pytest.mark.parametrize("anchor", [1, 8], ids=["whole", "what changed"])
def test_versions_over_a_link_between_trainer_and_explorer(site, rate, anchor):
    here = site(2, rate=rate)
    with_a_larger_model(here)
    given = (f"groups_database={server_on(here.hosts[0]).url}/run", f"weight_anchor_interval={anchor}", *SLOW)
    trainer = here.launch(here.hosts[0], *TRAINER, *given, local=True)
    explorer = here.launch(here.hosts[1], *EXPLORER, *given, local=True)
    assert (trainer.end(300), explorer.end(60)) == (0, 0), trainer.output + explorer.output
    trainer.is_clean()
    published, taken = trainer.summary()["weight_updates"], explorer.summary()["weight_updates"]
    sent = published["bytes"] / published["published"]
    is_slow = taken["send_s"] > MOST_SENDING * explorer.summary()["wall_s"]
    assert (SAID in explorer.output) is is_slow, "it depends on how fast the rest is"
    if anchor > 1:
        assert sent < taken["bytes"] / taken["count"] / 2
    lag_s, step_s = taken["send_s"] / taken["count"], trainer.summary()["wall_s"] / STEPS
    row = {"rate": rate, "anchor": anchor, "bytes": round(sent), "lag_s": round(lag_s, 2), "step_s": round(step_s, 2)}
    if is_slow and anchor == 1:
        row["told_mb_s"] = float(explorer.output.partition(SAID)[2].partition(" MB at ")[2].partition(" MB/s")[0])
    here.note(**row)

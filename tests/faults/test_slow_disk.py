"""Training does not wait for the disk: only the next checkpoint does. What is written late is the state of its own step."""

from __future__ import annotations

import json

from saving import contents

from roll.core.record.journal import read_rows

SETTINGS = ("deterministic=true", "async_generation_ratio=0", "save_steps=2")


def test_steps_are_trained_while_a_checkpoint_is_written(launch, tmp_path):
    whole = launch(*SETTINGS, "max_steps=2", "exp_name=whole")  # nothing is trained after this checkpoint
    assert whole.end() == 0, whole.output
    run = launch(*SETTINGS, "max_steps=6", "actor_train.worker_cls=fault_trainers.SlowDisk")
    run.wait_for("the writing", (tmp_path / "writing").exists)
    run.wait_for_steps(4)
    assert not list((run.dir / "checkpoints").glob("step-*"))
    (tmp_path / "released").touch()
    assert run.end() == 0, run.output

    late, expected = run.dir / "checkpoints/step-2", tmp_path / "output/whole/checkpoints/step-2"
    assert contents(late / "trainer") == contents(expected / "trainer")
    model = "model/model.safetensors"
    assert contents(late / "trainer")[model] != contents(run.dir / "checkpoints/step-4/trainer")[model], "nothing was learnt"
    states = [json.loads((folder / "pipeline.json").read_text()) for folder in (late, expected)]
    for of in ("admission", "cursor", "advantages"):
        assert states[0][of] == states[1][of]
    assert [state["record"]["staleness"] for state in states] == [states[0]["record"]["staleness"]] * 2

    rows = {row["step"]: row for row in read_rows(run.dir / "metrics.jsonl") if "actor_train/lr" in row}
    # The second checkpoint, due after step 4, waited for the first.
    assert rows[4]["time/checkpoint_wait_s"] == 0 < rows[5]["time/checkpoint_wait_s"]
    assert rows[3]["time/checkpoint_write_s"] > 0

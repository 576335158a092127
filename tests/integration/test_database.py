"""Groups in a database, in one driver: the same run as with groups in memory."""

import pytest
import torch
from safetensors.torch import load_file


def weights(run):
    return load_file(run.run_dir / "checkpoints" / "step-4" / "trainer" / "model" / "model.safetensors")


@pytest.mark.slow
def test_a_sequential_run_is_the_same_to_the_last_bit(make_config, lab, tmp_path):
    fixed = {"deterministic": True, "max_steps": 4}
    in_memory = lab.run(make_config(exp_name="memory", **fixed))
    stored = lab.run(make_config(exp_name="stored", groups_database=f"sqlite:///{tmp_path / 'groups.db'}", **fixed))
    expected = weights(in_memory)
    assert all(torch.equal(expected[name], tensor) for name, tensor in weights(stored).items())
    assert in_memory.rows("groups") == stored.rows("groups")
    assert in_memory.summary["groups"] == stored.summary["groups"]


def test_a_run_goes_on_from_its_checkpoint_with_what_the_database_holds(make_config, lab, tmp_path):
    address = f"sqlite:///{tmp_path / 'groups.db'}"
    apart = {"groups_database": address, "async_generation_ratio": 1, "save_steps": 2}
    first = lab.run(make_config(max_steps=3, **apart))
    assert first.summary["groups"]["trained"] == 12
    again = lab.run(make_config(max_steps=3, resume_from_checkpoint=str(first.run_dir / "checkpoints" / "step-2"), **apart))
    assert again.summary["resumed_from_step"] == 2 and again.summary["groups"]["trained"] == 12
    rows = again.rows("groups")
    assert len({row["group_id"] for row in rows}) == len(rows)

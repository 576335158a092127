"""Agentic runs whose roles are processes: engines are asked by the coordinators themselves, and a coordinator may be killed."""

import asyncio

import pytest

from roll.platform.ray_backend import RayBackend
from roll.prepare.agentic_run import AgenticRun, prepare

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("shared_ray")]


def test_a_coordinator_that_is_killed_costs_its_groups_at_most(lab, make_config, tmp_path):
    """An inline environment kills the coordinator it runs in (SIGKILL) in the middle of an episode. It is replaced, its groups
    are played again, and the run finishes."""
    config = make_config(
        {
            "custom_envs.letters.env_config": {"marker": str(tmp_path / "killed")},
            "custom_envs.letters.on_env_failure": "retry",
            "val_env_manager": {"num_env_groups": 2, "group_size": 2},
            "rpc_timeout": 120.0,
        },
        env_type="Killing",
        max_steps=2,
        eval_steps=2,
        async_generation_ratio=1,
    )
    run = lab.start(config, RayBackend(lab.inventory))
    assert run.summary["status"] == "finished", run.summary["reason"]
    assert run.summary["environment_worker_deaths"] == 1
    groups, statuses = run.summary["groups"], run.rows("groups")
    assert groups["trained"] == 2 * config.groups_per_step
    assert groups["admitted"] == groups["trained"] + sum(groups["dropped"].values())
    assert sorted(row["group_id"] for row in statuses) == list(range(groups["admitted"]))
    assert "environment_worker_died" not in groups["dropped"]
    assert [row["val/errors"] for row in run.rows("metrics") if "val/errors" in row] == [0.0, 0.0]


def test_ctrl_c_on_shared_devices_ends_the_episodes_and_saves(lab, make_config, monkeypatch):
    """The trainer has to have the device to save, and the engine sleeps only when nothing runs in it any more. However many turns
    an episode has, the driver calls a coordinator once a group, and an engine never."""
    from roll.platform.ray_backend import RayHandle

    called: list[str] = []
    original = RayHandle.call

    async def counted(self, method, *args):
        called.append(method)
        return await original(self, method, *args)

    monkeypatch.setattr(RayHandle, "call", counted)
    long = {"custom_envs.letters.env_config": {"length": 60}, "custom_envs.letters.max_steps": 60, "sequence_length": 250}
    config = make_config(long | {"actor_infer.device_mapping": "0"}, max_steps=50)
    prepared = prepare(config, lab.inventory)
    pipeline = AgenticRun(config, prepared, lab.inventory, RayBackend(lab.inventory))

    def in_the_middle_of_the_second_step():
        counts = pipeline.state.groups.admission.counts()
        return counts["trained"] and counts["in_flight"]

    async def main():
        run = asyncio.create_task(pipeline.run())
        while not run.done() and not in_the_middle_of_the_second_step():
            await asyncio.sleep(0.01)
        pipeline.interrupt()
        return await run

    summary = asyncio.run(asyncio.wait_for(main(), 120))
    assert summary["status"] == "interrupted", summary["reason"]
    assert [path.name for path in prepared.checkpoints.iterdir()] == [f"step-{summary['steps']}"]
    assert called.count("play_group") == summary["groups"]["admitted"]
    assert "generate" not in called

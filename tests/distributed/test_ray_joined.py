"""The death of a cluster's head, seen by a driver that joined the cluster; with a real one."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ray_heads import a_head, family

from roll.core.errors import BackendLost
from roll.platform import ray_nodes
from roll.platform.ray_nodes import _answers

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OWN_REWARD = """
from pathlib import Path

from roll.core.data.sample import Sample
from roll.core.rewards.worker import RewardWorker


class Table(RewardWorker):
    async def grade(self, sample: Sample) -> float:
        return float(Path(self.reward_args["table"]).read_text())
"""


@pytest.mark.ray
@pytest.mark.slow
def test_a_head_that_dies_ends_the_driver_with_the_reason_before_ray_does():
    code, out, address = end_of_a_driver()
    assert code == 0, out
    assert f"(RAY_ADDRESS={address}) cannot be reached for 2 s: the cluster's head has ended" in out


def end_of_a_driver():
    """Exit code and output of a driver whose cluster's control process is killed, and the cluster's address."""
    with a_head(HERE) as (process, environment):
        return (*watch_the_end(process, environment), environment["RAY_ADDRESS"])


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_relative_paths_lead_to_the_folder_of_the_driver_not_to_that_of_ray_start(tmp_path, embedded_task):
    """The first command of the README, as it is typed: model, prompts, ./output, a checkpoint, and a file that a reward opens."""
    shutil.copytree(ROOT / "examples" / "config", tmp_path / "examples" / "config")
    (tmp_path / "examples" / "embedded").mkdir()
    (tmp_path / "examples" / "embedded" / "cache").symlink_to(embedded_task)
    (tmp_path / "table.txt").write_text("0.25")
    (tmp_path / "my_rewards.py").write_text(OWN_REWARD)
    command = [sys.executable, "-m", "roll.cli.main", "train", "rlvr", "max_steps=2", "save_steps=1", "exp_name=joined"]
    command += ["rewards.arithmetic.worker_cls=my_rewards.Table", "rewards.arithmetic.reward_args={table: table.txt}"]
    command += ["rewards.arithmetic.query_filter_config.type=no_filter"]
    with a_head(HERE) as (_, environment):
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    run = tmp_path / "output" / "joined"
    assert sorted(path.name for path in (run / "checkpoints").glob("step-*")) == ["step-1", "step-2"]
    written = yaml.safe_load((run / "config.yaml").read_text())
    assert (written["output_dir"], written["pretrain"]) == ("./output", "examples/embedded/cache/model")
    assert json.loads((run / "samples.jsonl").read_text().splitlines()[0])["reward"] == 0.25
    assert "results          output/joined\n" in done.stdout


def watch_the_end(process, environment):
    driver = subprocess.Popen([sys.executable, HERE / "joined_driver.py"], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None and "up 3 False\n" in iter(driver.stdout.readline, "")
        (control,) = [pid for pid in family(process.pid) if "/gcs_server" in Path(f"/proc/{pid}/cmdline").read_text()[:200]]
        os.kill(control, signal.SIGKILL)
        out, _ = driver.communicate(timeout=100)
        return driver.returncode, out
    finally:
        driver.kill()


def test_ray_is_asked_nothing_while_its_control_process_cannot_be_reached(monkeypatch):
    monkeypatch.setattr(ray_nodes, "LOOK_S", 0.02)
    monkeypatch.setattr(ray_nodes, "LOST_S", 0.3)

    async def main():
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        joined = ray_nodes.JoinedRay("head:6379")
        port = server.sockets[0].getsockname()[1]
        joined._control = f"127.0.0.1:{port}"
        await joined.reached()
        server.close()
        await server.wait_closed()
        asked = asyncio.ensure_future(joined.reached())
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port)
        await asked  # it is back before the limit
        server.close()
        await server.wait_closed()
        with pytest.raises(BackendLost, match="the cluster's head has ended"):
            await joined.reached()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_what_answers():
    async def main():
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await _answers(address)
        server.close()
        await server.wait_closed()
        assert not await _answers(address)
        assert not await _answers("no-such-host.invalid:6379")

    asyncio.run(main())


ASKS_A_LOST_NODE = """
from roll.core.errors import NodeLost
from roll.platform.ray_backend import RayBackend
from roll.platform.ray_nodes import RayNode

backend = RayBackend()
backend._connect()
backend._node = lambda number: RayNode("10.0.0.9", "ab" * 28, 0, 1, "lost")
try:
    backend.free_port(1)
except NodeLost as error:
    print(error)
"""


@pytest.mark.ray
@pytest.mark.slow
def test_a_node_that_goes_before_its_port_is_known_is_waited_for_like_one_that_is_gone():
    """`NodeLost` has the restart of a trainer wait (`device_timeout`); any other error would end the run."""
    with a_head(HERE) as (_, environment):
        done = subprocess.run(
            [sys.executable, "-c", ASKS_A_LOST_NODE], env=environment, capture_output=True, text=True, timeout=200, check=False
        )
    assert "lost (10.0.0.9) names no free port (TaskUnschedulableError)" in done.stdout, done.stderr[-2000:]

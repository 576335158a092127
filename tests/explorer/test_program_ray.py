"""Programs whose coordinators are processes of Ray, and may be killed while they are asked."""

import os
import signal

import psutil
import pytest

from roll.platform.ray_backend import RayBackend

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("shared_ray")]
KILLS = """
import os, signal
try:
    os.close(os.open({marker!r}, os.O_CREAT | os.O_EXCL))
except FileExistsError:
    pass
else:
    above = os.getpid()
    for _ in range(3):  # what keeps this program, what starts programs, the coordinator
        above = int(open(f"/proc/{{above}}/stat").read().rpartition(") ")[2].split()[1])
    os.kill(above, {signal:d})
"""


def test_a_gateway_that_is_killed_with_its_coordinator_is_replaced_and_its_programs_have_ended(lab, of_programs, tmp_path):
    """A program kills the coordinator that it descends from: the gateway of all its episodes is gone in the middle of their
    calls. Another coordinator plays their groups again."""
    code = KILLS.format(marker=str(tmp_path / "killed"), signal=signal.SIGKILL)
    first, _, rest = lab.agent.partition("ask([*begin, first")
    (tmp_path / "agent" / "agent.py").write_text(f"{first}{code}\nask([*begin, first{rest}")
    mine = {"custom_envs.letters.program.environment": {"MADE_BY": str(tmp_path)}}
    config = of_programs({"rpc_timeout": 120.0, **mine}, max_steps=2, async_generation_ratio=1)
    run = lab.start(config, RayBackend(lab.inventory))
    assert run.summary["status"] == "finished", run.summary["reason"]
    assert run.summary["environment_worker_deaths"] == 1 and (tmp_path / "killed").exists()
    groups = run.summary["groups"]
    assert groups["trained"] == 2 * config.groups_per_step and "environment_worker_died" not in groups["dropped"]
    assert not [each.pid for each in psutil.process_iter() if variables(each).get("MADE_BY") == str(tmp_path)]


def variables(process):
    try:
        return process.environ() if process.pid != os.getpid() else {}
    except psutil.Error:
        return {}

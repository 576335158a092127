"""A real Prometheus (Debian's package) beside a run that is killed and resumed: no series is lost, no group is counted twice."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from tiny_world import BATCH, read_json_lines, wait_for

from roll.platform.ports import free_port

SERVER = shutil.which(os.environ.get("PROMETHEUS", "prometheus"))
DASHBOARD = Path(__file__).parents[2] / "examples/monitoring/dashboard.json"
RESUME = "resume_from_checkpoint=auto"

needs_server = pytest.mark.skipif(SERVER is None, reason="needs Debian's package prometheus (or PROMETHEUS=/path/to/prometheus)")


class Prometheus:
    def __init__(self, folder: Path, target: int) -> None:
        self.port = free_port()
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 200ms}\n"
            f"scrape_configs: [{{job_name: roll, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}]\n"
        )
        command = [str(SERVER), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        with (folder / "prometheus.log").open("w") as log:
            self.process = subprocess.Popen(
                [*command, f"--web.listen-address=127.0.0.1:{self.port}"], stdout=log, stderr=subprocess.STDOUT
            )
        wait_for("Prometheus", self._is_there, 60)

    def _is_there(self) -> bool:
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5).status == 200
        except OSError:
            return False

    def ask(self, query: str) -> list[dict]:
        url = f"http://127.0.0.1:{self.port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        return json.loads(urllib.request.urlopen(url, timeout=10).read())["data"]["result"]

    def number(self, query: str) -> float | None:
        found = self.ask(query)
        return float(found[0]["value"][1]) if found else None


@pytest.fixture
def prometheus(tmp_path):
    port = free_port()
    server = Prometheus(tmp_path, port)
    server.target = port
    yield server
    server.process.kill()
    server.process.wait()


def series(server, since="10m"):
    """The series of the run that were seen: the metric and its labels."""
    return {
        json.dumps(each["metric"], sort_keys=True) for each in server.ask(f"last_over_time({{__name__=~'roll_.+'}}[{since}])")
    }


ABSENT = {
    *("roll_reward_errors_total", "roll_samples_without_reward_total", "roll_environment_failures_total"),
    *("roll_rollout_failures_total", "roll_mismatch", "roll_device_memory_peak_bytes"),
}
"""Series that a run has none of on a CPU without failures."""
TRAINED = 'roll_groups_total{status="trained"}'


@needs_server
def test_no_series_is_lost_and_no_group_counted_twice_when_a_run_is_killed_and_resumed(launch, prometheus):
    given = (RESUME, "max_steps=100000", "save_steps=20", "eval_steps=50", f"metrics_address=127.0.0.1:{prometheus.target}")
    killed = launch(*given)
    killed.wait_for("scrapes", lambda: (prometheus.number("roll_step") or 0) >= 50)
    killed.wait_for("engines", lambda: prometheus.ask("roll_engine_requests"))
    killed.wait_for("figures of the summary", lambda: prometheus.ask("roll_weight_updates_total"))
    killed.signal(signal.SIGKILL)
    killed.end()
    seen, before = series(prometheus), prometheus.number(f"max_over_time({TRAINED}[10m])")
    resumed = launch(*given)
    resumed.wait_for("newer scrapes", lambda: (prometheus.number(TRAINED) or 0) > before + 20 * BATCH)
    resumed.wait_for("figures of the summary", lambda: prometheus.number("changes(process_start_time_seconds[10m])") == 1)
    resumed.wait_for("all series", lambda: seen <= series(prometheus, "2s"))
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [each["expr"].replace("$run", ".*") for panel in panels for each in panel["targets"]]
    empty = {query for query in queries if not prometheus.ask(query)}  # what it cannot parse is an error 400
    resumed.signal(signal.SIGTERM)
    resumed.end()

    assert {re.search(r"roll_\w+", query)[0] for query in empty} <= ABSENT
    assert prometheus.number("sum(resets(roll_groups_total[10m]))") == 0
    assert prometheus.number(f"count(last_over_time({TRAINED}[10m]))") == 1
    served, accounted = prometheus.number(f"max_over_time({TRAINED}[10m])"), resumed.summary()["groups"]["trained"]
    assert before < served <= accounted
    assert accounted == sum(row["status"] == "trained" for row in read_json_lines(resumed.dir / "groups.jsonl"))


def test_a_port_that_another_process_has_is_refused_before_a_worker_starts(launch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = launch(f"metrics_address=:{port}")
        assert run.end() == 2
    assert f"metrics_address = ':{port}': nothing can listen at 127.0.0.1, port {port}" in run.output
    assert "fix: an address of this machine and a port that is free" in run.output
    assert "Traceback" not in run.output and "starting" not in run.output

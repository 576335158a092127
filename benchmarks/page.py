"""`roll ui`: how fast the page of a long run comes, and what readers cost a run that trains.

    python benchmarks/page.py first [--steps 5000] [--groups 100000] [--rollouts 40000] [--spans 1000000] [--tries 3]
    python benchmarks/page.py readers [--readers 50] [--steps 60] [--rounds 3]

`first` writes a synthetic run of that size and opens it in chromium (Debian: `apt install chromium`; `pip install playwright`):
until status and curves are drawn, until all is, and the frames while it is scrolled and its lanes are zoomed; with a server that
has read nothing yet, and with one that has. `readers` trains the embedded task in one process, with and without so many
connections that follow the run and ask for its curves, groups and lanes whenever a step is done, on the loopback interface.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from pipeline_run import ROOT, save_results
from processes import PAGE

Row = dict[str, Any]

MOST_READERS = 200
FRAMES = """async (act) => {
  const gaps = []; let before = performance.now(), on = true;
  const frame = (now) => { gaps.push(now - before); before = now; if (on) requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
  await act();
  on = false;
  return gaps.slice(1).sort((a, b) => a - b);
}"""
SCROLL = """async () => { for (let y = 0; y < document.body.scrollHeight; y += 60) {
  scrollTo(0, y); await new Promise(requestAnimationFrame); } }"""
ZOOM = """async () => { const canvas = document.querySelector("#time canvas"); canvas.scrollIntoView();
  for (let i = 0; i < 60; i++) {
  canvas.dispatchEvent(new WheelEvent("wheel", {deltaY: i % 20 < 12 ? -100 : 100, cancelable: true}));
  await new Promise(requestAnimationFrame); } }"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    first = kinds.add_parser("first")
    for name, default in (("steps", 5000), ("groups", 100_000), ("rollouts", 40_000), ("spans", 1_000_000), ("tries", 3)):
        first.add_argument(f"--{name}", type=int, default=default)
    readers = kinds.add_parser("readers")
    for name, default in (("readers", 50), ("steps", 60), ("rounds", 3)):
        readers.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(arguments)
    rows = first_views(options) if options.kind == "first" else costs(options)
    for name, value in rows.items():
        print(f"{name:<52} {value}")
    save_results(f"page_{options.kind}", rows)


# -- a long run ----------------------------------------------------------------------------------------------------------------


def write_run(folder: Path, steps: int, groups: int, rollouts: int, spans: int) -> None:
    """A run as one leaves it, of random figures."""
    random = Random(0)
    (folder / "trace").mkdir(parents=True)
    (folder / "config.yaml").write_text(json.dumps({"max_steps": steps, "async_generation_ratio": 1.0}))
    accounts = {"admitted": groups, "trained": groups, "buffered": 0, "in_flight": 0, "dropped": {}}
    summary = {"status": "finished", "steps": steps, "wall_s": 3.0 * steps, "groups": accounts}
    (folder / "summary.json").write_text(json.dumps(summary))
    named = ["critic/score/mean", "time/step_s", "time/wait_for_batch_s", "staleness/mean", "staleness/max", "actor/entropy"]
    named += ["tokens/response_length/mean", "tokens/response_length/max", "tokens/response_length/clip", "actor/ess"]
    named += ["actor_train/grad_norm", "actor/train_infer_k3", "throughput/response_tokens_per_s", "time/elapsed_s"]
    named += [f"more/{number}" for number in range(72 - len(named))]
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            row: Row = {name: random.random() for name in named} | {"step": step, "time/elapsed_s": 3.0 * step}
            file.write(json.dumps(row) + "\n")
    with (folder / "groups.jsonl").open("w") as file:
        for number in range(groups):
            rewards = [float(random.random() < 0.5) for _ in range(8)]
            row = {
                "group_id": number,
                "prompt_uid": f"math/{number // 9000}/row{number % 9000}",
                "status": "trained",
                "reason": "",
            }
            row |= {
                "step": 1 + number * steps // groups,
                "start_version": 0,
                "lag": number % 2,
                "rewards": rewards,
                "tokens": 800,
            }
            file.write(json.dumps(row) + "\n")
    write_samples(folder / "samples.jsonl", random, steps, groups, rollouts)
    write_trace(folder / "trace", random, spans)


def write_samples(path: Path, random: Random, steps: int, groups: int, rollouts: int) -> None:
    with path.open("w") as file:
        for number in range(rollouts):
            group = (number // 8) * (groups * 8 // rollouts)
            ids = [random.randrange(1000) for _ in range(100)]
            row = {
                "step": 1 + group * steps // groups,
                "status": "trained",
                "prompt": "1+1=",
                "response": "2 " * 100,
                "ground_truth": "2",
            }
            row |= {"reward": float(number % 2), "finish_reason": "stop", "group_id": group, "index": number % 8}
            row |= {"prompt_uid": f"math/{group // 9000}/row{group % 9000}", "domain": "math", "tag": "math"}
            row |= {"versions": [[0, 100, 1, 0]], "response_ids": ids, "behaviour_logprobs": [-0.5] * 100}
            file.write(json.dumps(row) + "\n")


def write_trace(folder: Path, random: Random, spans: int, per_file: int = 50_000) -> None:
    rows = ["actor_train", "actor_infer", "rewards.math", "advantages", "weight updates"]
    heads = [{"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": row}} for i, row in enumerate(rows)]
    for start in range(0, spans, per_file):
        events: list[dict[str, Any]] = list(heads)
        for number in range(start, min(start + per_file, spans)):
            name = ("busy", "waiting for input", "waiting for output")[number % 3]
            times = {"ts": number // len(rows) * 75_000, "dur": random.randrange(75_000)}
            events.append({"ph": "X", "name": name, "pid": 0, "tid": number % len(rows), **times, "args": {}})
        text = json.dumps({"traceEvents": events})
        (folder / f"trace-{1 + start // per_file:04}.json.gz").write_bytes(gzip.compress(text.encode(), 4))


# -- the first view ------------------------------------------------------------------------------------------------------------


def first_views(options: argparse.Namespace) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        write_run(Path(place) / "long", options.steps, options.groups, options.rollouts, options.spans)
        size = sum(path.stat().st_size for path in Path(place).rglob("*") if path.is_file())
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=[] if os.getuid() else ["--no-sandbox"])
        tries = [_tried(browser, Path(place)) for _ in range(options.tries)]
        browser.close()
    rows: dict[str, Any] = {"files": f"{size / 1e6:.0f} MB", "load": f"{os.getloadavg()[0]:.1f}"}
    return rows | {name: " ".join(f"{one[name]:.3g}" for one in tries) for name in tries[0]}


def _tried(browser: Any, folder: Path) -> dict[str, float]:
    """One fresh server, opened twice."""
    found: dict[str, float] = {}
    with served(folder) as (address, pid):
        for which in ("read nothing yet", "read before"):
            context = browser.new_context(viewport={"width": 1400, "height": 900})
            page = context.new_page()
            page.set_default_timeout(120_000)
            started = time.perf_counter()
            page.goto(address)
            page.wait_for_selector(".chart canvas")
            found[f"{which}: status and curves, s"] = time.perf_counter() - started
            page.wait_for_selector("table.groups tbody tr")
            found[f"{which}: groups, s"] = time.perf_counter() - started
            page.wait_for_selector("#time canvas[style*=height]")
            found[f"{which}: lanes, s"] = time.perf_counter() - started
            for what, act in (("scrolling", SCROLL), ("zooming the lanes", ZOOM)):
                gaps = page.evaluate(f"({FRAMES})({act})")
                found[f"{which}: frames, {what}, median, ms"] = statistics.median(gaps)
                found[f"{which}: frames, {what}, longest, ms"] = gaps[-1]
            context.close()
        found["memory of the server, MiB"] = rss_mib(pid)
    return found


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, int]]:
    """The address of `roll ui`, a process of its own, and its process id."""
    command = [sys.executable, "-m", "roll.cli.main", "ui", str(folder), "--no-open"]
    server = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = next(line for line in server.stdout if "token=" in line)
        yield next(word for word in line.split() if "token=" in word), server.pid
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)


def cpu_s(pid: int) -> float:
    """Of all its threads so far."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 2**20


# -- readers of a run that trains ----------------------------------------------------------------------------------------------


def costs(options: argparse.Namespace) -> dict[str, Any]:
    """Step times alternate: a run nobody looks at, one that is followed."""
    if not 1 <= options.readers <= MOST_READERS:
        raise SystemExit(f"--readers {options.readers}: 1 to {MOST_READERS}, which is what a server takes")
    alone, followed, seen, memory, spent = [], [], [], [], []
    for _ in range(options.rounds):
        alone.append(_trained(options.steps, 0)[0])
        times, events, rss, cpu = _trained(options.steps, options.readers)
        spent.append(cpu / options.steps)
        followed.append(times)
        seen.append(events)
        memory += rss
    median = [[statistics.median(times) for times in each] for each in (alone, followed)]
    return {
        "median seconds a step, alone": " ".join(f"{value:.3f}" for value in median[0]),
        f"the same with {options.readers} readers": " ".join(f"{value:.3f}" for value in median[1]),
        "ratio of the medians": f"{statistics.median(median[1]) / statistics.median(median[0]):.3f}",
        "events that a reader got, fewest and most": " ".join(f"{min(each)}-{max(each)}" for each in seen),
        "processor time of the server, s a step": " ".join(f"{value:.3f}" for value in spent),
        "memory of the server, MiB, first and last": " ".join(f"{value:.0f}" for value in memory),
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def _trained(steps: int, readers: int) -> tuple[list[float], list[int], list[float], float]:
    """Seconds of each step but the first five, events of each reader, the server's memory when half of the run is over and at its
    end, and its processor time."""
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "roll.cli.main", "train", "rlvr", "--local", f"output_dir={place}", "exp_name=run"]
        command += [f"max_steps={steps}", "eval_steps=100000", "save_steps=100000", "track_with=none", "rollout_log_per_step=8"]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "CI": "1"}
        with served(Path(place)) as (address, pid), (Path(place) / "console.txt").open("w") as console:
            run = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=console, stderr=subprocess.STDOUT)
            memory = [rss_mib(pid)]
            crowd = Crowd(address, readers)
            while run.poll() is None:
                time.sleep(0.5)
                crowd.begin_if(Path(place) / "run/metrics.jsonl")
                memory.append(rss_mib(pid))
            crowd.end()
            cpu = cpu_s(pid)
            if run.returncode:
                raise SystemExit((Path(place) / "console.txt").read_text()[-3000:])
        rows = [json.loads(line) for line in (Path(place) / "run/metrics.jsonl").read_text().splitlines()]
        times = [row["time/step_s"] + row["time/wait_for_batch_s"] for row in rows if "time/step_s" in row and row["step"] > 5]
        return times, crowd.events, [memory[len(memory) // 2], memory[-1]], cpu


class Crowd:
    """Readers in a thread with a loop of its own: each follows the run as the page does."""

    def __init__(self, address: str, readers: int) -> None:
        parts = urlsplit(address)
        assert parts.port is not None
        self._port, self._token = parts.port, parts.query
        self.events = [0] * readers
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

    def begin_if(self, path: Path) -> None:
        if self._thread is None and self.events and path.exists():
            self._thread = threading.Thread(target=lambda: asyncio.run(self._all()))
            self._thread.start()

    def end(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    async def _all(self) -> None:
        tasks = [asyncio.create_task(self._follow(number)) for number in range(len(self.events))]
        while not self._over.is_set():
            await asyncio.sleep(0.2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, number: int) -> None:
        reader, writer = await self._asked("stream?run=run")
        step = None
        while line := await reader.readline():
            if line.startswith(b"data: "):
                self.events[number] += 1
                status = json.loads(line.removeprefix(b"data: "))
                if status["step"] != step:
                    step = status["step"]
                    since = f"&since={step - 1}" if step else ""
                    for what in (
                        f"curves?run=run&name=critic/score/mean{since}",
                        "groups?run=run",
                        "funnel?run=run",
                        "lanes?run=run",
                    ):
                        answer, ended = await self._asked(what)
                        await answer.read()
                        ended.close()
        writer.close()

    async def _asked(self, what: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        head = f"GET /api/{what}&{self._token} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        return reader, writer


if __name__ == "__main__":
    main()

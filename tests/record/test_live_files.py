"""The files that are rewritten while a run runs: whole, by its owner alone, and never after its end."""

import asyncio
import gzip
import json

import pytest

from roll.core.errors import Superseded
from roll.core.record import live_files
from roll.core.record.ledger import Ledger
from roll.core.record.live_files import SUMMARY, LiveFiles, amend_summary, announce_running
from roll.core.record.run_lock import RunLock
from roll.core.record.trace import Span


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").write_text('{"step": 1, "critic/score/mean": 0.5}\n')
    return tmp_path / "run"


def summary(run_dir):
    return json.loads((run_dir / SUMMARY).read_text())


def spans(run_dir):
    (path,) = (run_dir / "trace").iterdir()
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [event["name"] for event in events if event["ph"] == "X"]


async def kept_until(live, figures, done):
    """`keep` until `done()`; raises what it raises."""

    async def told():
        return figures()

    keeping = asyncio.ensure_future(live.keep(told, Ledger(0.0, live.trace)))
    try:
        while not done():
            finished, _ = await asyncio.wait([keeping], timeout=0.01)
            if finished:
                keeping.result()
    finally:
        keeping.cancel()


def keep_until(*args):
    asyncio.run(asyncio.wait_for(kept_until(*args), 60))


def test_the_files_follow_the_run_and_then_its_end(run_dir, monkeypatch):
    monkeypatch.setattr(live_files, "EVERY_S", 0.01)
    monkeypatch.setattr(live_files, "SHARE", 1e6)
    live = LiveFiles(run_dir, lock=None)
    announced = announce_running(run_dir, "")
    steps = iter(range(1000))
    live.trace.add(Span("steps", "step 1", 0.0, 1.0, {}))
    keep_until(live, lambda: {"steps": next(steps)}, lambda: summary(run_dir).get("steps", 0) >= 3)
    running = summary(run_dir)
    assert announced.items() <= running.items(), "the watchdog knows the summary by this"
    assert running.keys() - announced.keys() == {"as_of", "steps"}
    assert spans(run_dir) == ["step 1"]
    live.trace.add(Span("steps", "step 2", 1.0, 2.0, {}))
    live.finish({"status": "finished", "steps": 2}, None)
    assert summary(run_dir) == {"status": "finished", "steps": 2}
    assert spans(run_dir) == ["step 1", "step 2"]
    live._rewrite([lambda: pytest.fail("a thread that is late must not write over the end")])


def test_who_lost_the_folder_writes_nothing_there(run_dir, monkeypatch):
    monkeypatch.setattr(live_files, "EVERY_S", 0.01)
    lock = RunLock(run_dir)
    live = LiveFiles(run_dir, lock)
    announce_running(run_dir, "now")
    kept = (run_dir / SUMMARY).read_bytes()
    owner = json.loads((run_dir.parent / ".run.owner.json").read_text())
    (run_dir.parent / ".run.owner.json").write_text(json.dumps(owner | {"id": "another"}))
    with pytest.raises(Superseded):
        keep_until(live, dict, lambda: False)
    with pytest.raises(Superseded):
        live.finish({"status": "finished"}, None)
    assert (run_dir / SUMMARY).read_bytes() == kept and not (run_dir / "trace").exists()
    lock.close()


def test_an_end_that_nobody_foresaw_keeps_the_last_figures(run_dir):
    end = {"status": "failed", "reason": "KeyError: 'x'"}
    amend_summary(run_dir, end)
    assert summary(run_dir) == end
    (run_dir / SUMMARY).write_text('{"status": "running", "steps": 3}')
    amend_summary(run_dir, end)
    assert summary(run_dir) == end | {"steps": 3}

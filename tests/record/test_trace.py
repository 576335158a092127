"""A trace keeps the whole run, in files of bounded size that open one by one."""

import gzip
import json
from collections import Counter

import pytest

from roll.core.record.trace import WAITING_FILES, Span, Trace


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def write(trace, open_spans=()):
    files = trace.files(open_spans)
    for file in files:
        file.write()
    trace.written(files)


def read(path):
    """The events, as a viewer reads them: rows by name, and the borders of each group's track."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    spans = [(rows[e["tid"]], e["name"], e["ts"], e["dur"], e["args"]) for e in events if e["ph"] == "X"]
    return spans, [e for e in events if e["ph"] in "be"]


def test_a_row_a_name_in_microseconds_since_the_start(tmp_path):
    trace = Trace(tmp_path / "trace", clock := Clock())
    trace.add(Span("train", "busy", 100.5, 102.0, {"reason": "step 1"}))
    with trace.during("weights", "send version 1", engines=[0]):
        clock.now = 103.0
    write(trace, [Span("train", "idle", 102.0, 103.0, {"lag": float("nan")})])
    spans, _ = read(tmp_path / "trace/trace-0001.json.gz")
    assert spans == [
        ("train", "busy", 0.5e6, 1.5e6, {"reason": "step 1"}),
        ("weights", "send version 1", 0.0, 3e6, {"engines": [0]}),
        ("train", "idle", 2e6, 1e6, {"lag": None}),
    ]


def test_a_group_has_a_track_with_its_phases_and_its_status(tmp_path):
    trace = Trace(tmp_path, clock := Clock())
    for second, phase in enumerate(["rollout", "buffered", "training"]):
        clock.now = 100.0 + second
        trace.enter_phase(7, phase)
    trace.enter_phase(8, "rollout")
    clock.now = 105.0
    trace.end_group(7, {"status": "trained", "lag": 1, "tokens_by_version": {3: 20, 4: 2}})
    write(trace)
    _, borders = read(tmp_path / "trace-0001.json.gz")
    track = [(e["ph"], e["name"], e["ts"]) for e in borders if (e["cat"], e["id"]) == ("group", 7)]
    assert track == [
        ("b", "group", 0.0),
        *[("b", "rollout", 0.0), ("e", "rollout", 1e6)],
        *[("b", "buffered", 1e6), ("e", "buffered", 2e6)],
        *[("b", "training", 2e6), ("e", "training", 5e6)],
        ("e", "group", 5e6),
    ]
    facts = {e["id"]: e["args"] for e in borders if (e["ph"], e["name"]) == ("b", "group")}
    assert facts[7] == {"group_id": 7, "status": "trained", "lag": 1, "tokens_by_version": {"3": 20, "4": 2}}
    assert facts[8] == {"group_id": 8, "status": "live"}, "what is under way is shown, too"


def filled(trace, clock, groups):
    for group in range(groups):
        trace.enter_phase(group, "rollout")
        clock.now += 1.0
        trace.end_group(group, {"status": "trained"})
        yield group


def test_no_group_is_lost_between_files_of_bounded_size(tmp_path):
    trace = Trace(tmp_path, clock := Clock(), file_events=40)
    trace.enter_phase(1000, "rollout")
    for group in filled(trace, clock, 100):
        if group % 7 == 0:
            write(trace)
    trace.end_group(1000, {"status": "dropped"})
    write(trace)
    files = sorted(tmp_path.iterdir())
    assert len(files) > 3 and files[0].name == "trace-0001.json.gz"
    assert all(len(gzip.decompress(path.read_bytes())) < 6500 for path in files)
    ends = Counter()
    for path in files:
        _, borders = read(path)
        facts = [e["args"] for e in borders if (e["ph"], e["name"]) == ("b", "group")]
        opened, closed = (Counter(e["id"] for e in borders if e["ph"] == ph) for ph in "be")
        assert opened == closed, "a file is a trace by itself"
        ends.update(fact["group_id"] for fact in facts if fact["status"] != "live")
    assert ends == dict.fromkeys([*range(100), 1000], 1)


def test_a_full_disk_costs_no_memory_without_end(tmp_path):
    trace = Trace(tmp_path, clock := Clock(), file_events=40)
    for _ in filled(trace, clock, 1000):
        pass
    files = trace.files()
    assert len(files) == WAITING_FILES + 1
    assert files[-1].forgotten > 10


def test_a_resumed_run_goes_on_in_a_new_file(tmp_path):
    write(Trace(tmp_path))
    first = (tmp_path / "trace-0001.json.gz").read_bytes()
    write(Trace(tmp_path))
    assert (tmp_path / "trace-0001.json.gz").read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace-0001.json.gz", "trace-0002.json.gz"]


def spans_of_a_second(folder, now):
    """As the file shows them, of a trace that is made at this moment of its clock."""
    clock = Clock()
    clock.now = now
    trace = Trace(folder, clock)
    clock.now += 1.0
    trace.add(Span("train", "busy", now, now + 1.0, {}))
    write(trace)
    return [(begin, lasts) for _, _, begin, lasts, _ in read(sorted(folder.iterdir())[-1])[0]]


def test_attempts_of_a_run_lie_one_after_the_other_whatever_the_clock_said(tmp_path):
    assert spans_of_a_second(tmp_path, 500.0) == [(0.0, 1e6)]
    assert spans_of_a_second(tmp_path, 3.0) == [(1e6, 1e6)]
    assert spans_of_a_second(tmp_path, 9_000.0) == [(2e6, 1e6)]


@pytest.mark.parametrize(
    "contents",
    [b"", b"half a file", gzip.compress(b"[1]"), gzip.compress(b'{"otherData": [\n'), b"\x1f\x8b\x08\x00"],
    ids=["empty", "no gzip", "a list", "cut off", "a head"],  # gzip writes the time into its head
)
def test_after_a_file_that_says_no_end_a_trace_begins_at_zero(tmp_path, contents):
    (tmp_path / "trace-0001.json.gz").write_bytes(contents)
    assert spans_of_a_second(tmp_path, 3.0) == [(0.0, 1e6)]


def test_a_block_that_raises_is_not_shown(tmp_path):
    trace = Trace(tmp_path)
    with pytest.raises(OSError), trace.during("weights", "send"):
        raise OSError
    assert len(trace.files()[0].pieces) == 0

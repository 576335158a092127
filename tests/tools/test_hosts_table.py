"""The page has what the tests on hosts have recorded."""

import json
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLES = runpy.run_path(str(ROOT / "tools/hosts_table.py"))["tables"]


def made(tmp_path, *rows):
    record = tmp_path / "records.jsonl"
    record.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [table.splitlines()[2:] for table in TABLES(record)]


def test_the_page_has_the_tables_of_the_records():
    page = (ROOT / "docs_roll/cluster.md").read_text()
    assert TABLES() and all(table in page for table in TABLES())


def test_a_group_that_is_nowhere_is_lost_and_the_last_record_counts(tmp_path):
    groups = {"admitted": 10, "trained": 6, "buffered": 0, "in_flight": 1, "dropped": {"filter": 2}}
    rows = ({"what": "cut", "stop_s": seconds, "groups": groups} for seconds in (9.0, 3.25))
    assert made(tmp_path, *rows) == [["| cut | 3.2 s | 6, 2, 1 |"]]


def test_the_campaign_is_counted_by_kind_links_by_rate_and_costs_by_hosts(tmp_path):
    one, other = ({"kind": "cut", "stop_s": seconds} for seconds in (4.0, 8.0))
    seeds = [{"seed": seed, "layout": "ranks", "faults": [one, other]} for seed in (1, 2, 2)]
    link = {"rate": "10mbit", "anchor": 8, "bytes": 12345, "lag_s": 0.123, "step_s": 1.5}
    real = link | {"model": "SmolLM2-135M", "anchor": 1, "told_mb_s": 11.8}
    size = {"hosts": 8, "start_s": 40.1, "step_s": 9.5, "ms_a_group": 12.5, "sockets": 90, "memory_mb": 1234}
    size |= {"lost": 2, "lost_stop_s": 21.0, "end_s": 6.1}
    assert made(tmp_path, *seeds, link, real, link, size) == [
        ["| ranks: cut | 4 | 6.0 s, 8.0 s |"],
        [
            "| 2.5 MB | 10mbit/s | what changed, every 8th whole | 12,345 | 0.12 | 1.50 |  |",
            "| SmolLM2-135M | 10mbit/s | whole | 12,345 | 0.12 | 1.50 | 11.8 MB/s |",
        ],
        ["| 8 | 40.1 s | 9.5 s | 12.5 ms | 90 | 1,234 MB | 21.0 s (2) | 6.1 s |"],
    ]

"""The page has what the tests on hosts have recorded."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = runpy.run_path(str(ROOT / "tools/hosts_table.py"))["table"]


def test_the_page_has_the_table_of_the_records():
    assert TABLE() in (ROOT / "docs_roll/cluster.md").read_text()


def test_a_group_that_is_nowhere_is_lost_and_the_last_record_counts(tmp_path):
    record = tmp_path / "records.jsonl"
    groups = '{"admitted": 10, "trained": 6, "buffered": 0, "in_flight": 1, "dropped": {"filter": 2}}'
    record.write_text("".join(f'{{"what": "cut", "stop_s": {seconds}, "groups": {groups}}}\n' for seconds in (9.0, 3.25)))
    assert TABLE(record).splitlines()[2:] == ["| cut | 3.2 s | 6, 2, 1 |"]

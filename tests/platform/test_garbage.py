"""What a search for garbage looks at, in processes that differ in what they do."""

import gc
import subprocess
import sys

import pytest

from roll.core.configs.dotted_path import import_object
from roll.platform.garbage import collection_paused

PROGRAM = """
import gc, sys
from roll.platform import garbage

class Cycle:
    def __init__(self): self.itself = self

{body}
"""


def answer(body: str) -> list[str]:
    program = [sys.executable, "-c", PROGRAM.format(body=body)]
    return subprocess.run(program, capture_output=True, text=True, check=True, timeout=120).stdout.split()


def test_it_runs_again_after_an_import_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    (tmp_path / "broken_module.py").write_text("import gc\nassert gc.isenabled(), 'paused'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match="paused"), collection_paused():
        import_object("broken_module.Name")
    assert gc.isenabled()


def test_what_is_there_is_spared_once_and_garbage_of_later_is_not() -> None:
    spared = "garbage.spare_what_is_there(); print(gc.get_freeze_count() > 1000)"
    later = "count = gc.get_freeze_count(); Cycle(); garbage.spare_what_is_there(); print(count == gc.get_freeze_count())"
    assert answer(f"{spared}\n{later}\nprint(gc.collect() > 0)") == ["True", "True", "True"]


CHURN = """
import weakref
garbage.YOUNG = 100
garbage.LEAST_MB = 512.0
usual = gc.get_threshold()
searching = garbage.searching_young_objects()
searching.__enter__()
growth = garbage.Growth()
young = weakref.ref(Cycle())
more = [[] for _ in range(200)]
print(young() is None)
old = Cycle()
there = weakref.ref(old)
more += [[] for _ in range(200)]
del old
more += [[] for _ in range(2000)]
growth.note(1000.0)
print(there() is None)
growth.note(1025.0)
print(there() is None)
growth.note(2049.0)
print(growth._bound_mb)
more.append(old := Cycle())
there = weakref.ref(old)
more += [[] for _ in range(200)]
del old, more
print(there() is None)
searching.__exit__(None, None, None)
print(there() is None, gc.get_threshold() == usual, gc.callbacks)
"""


def test_what_has_outlived_a_search_is_searched_when_the_memory_has_doubled_and_at_the_end() -> None:
    assert answer(CHURN) == ["True", "False", "True", "2050.0", "False", "True", "True", "[]"]

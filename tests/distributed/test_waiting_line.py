from hypothesis import given
from hypothesis import strategies as st

from roll.core.distributed.waiting_line import WaitingLine


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(-1, 2)), max_size=30))
def test_a_line_is_the_sorted_list_of_those_that_were_not_removed(changes):
    """-1 removes; else a name that is not in the line is added, at its end."""
    line, plain = WaitingLine(), []
    for arrival, (name, priority) in enumerate(changes):
        held = [entry for entry in plain if entry[2] == name]
        if priority < 0:
            assert line.remove(name) == (held[0] if held else None)
            plain = [entry for entry in plain if entry[2] != name]
        elif not held:
            line.add(name, priority, (priority, arrival, name))
            plain.append((priority, arrival, name))
        assert line.first() == min(plain, default=None) and len(line) == len(plain)
        assert line.names == [entry[2] for entry in plain] and (name in line) == any(entry[2] == name for entry in plain)

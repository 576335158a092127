import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.core.configs.device_mapping import GRAMMAR, parse_device_mapping

devices = st.lists(st.integers(0, 4000), min_size=1, max_size=20, unique=True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([0, 1], (0, 1)),
        (3, (3,)),
        ("0", (0,)),
        ("0-3,6", (0, 1, 2, 3, 6)),
        (" 1 , 0 ", (1, 0)),
        ("list(range(3))", (0, 1, 2)),
        ("list(range(0,4))", (0, 1, 2, 3)),
        ("list( range( 8 , 16 , 4 ) )", (8, 12)),
        ("list(range(0,2)) + list(range(4, 6))", (0, 1, 4, 5)),
        ("list(range(2)) + [5, 7] + 9-10", (0, 1, 5, 7, 9, 10)),
        ("list([0, 1,8]) + list( [9] )", (0, 1, 8, 9)),
    ],
)
def test_accepted_forms(value, expected):
    assert parse_device_mapping(value) == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "cannot be read"),
        ([], "no device"),
        ("list(range(0,0))", "no device"),
        ("0,0", "device 0 more than once"),
        ([1, 1], "device 1 more than once"),
        ("list(range(0,4)) + 3", "device 3 more than once"),
        ([-1], "negative"),
        ("-1", "negative"),
        ("3-1", "reversed range 3-1"),
        ("list(range(4,0))", "reversed range 4 to 0"),
        ("list(range(0,4,0))", "step 0"),
        ("0-99999999999999999999", "beyond"),
        ("list(range(0,99999999999999999999))", "beyond"),
        ([10**30], "beyond"),
        ([True], "not an integer"),
        (["0"], "not an integer"),
        (True, "not a device mapping"),
        ({"a": 1}, "not a device mapping"),
        ("__import__('os').abort()", "cannot be read"),
        ("list(range(0,4)", "cannot be read"),
        ("٣", "cannot be read"),
    ],
)
def test_refusals_name_the_value_and_the_grammar(value, reason):
    with pytest.raises(ValueError) as caught:
        parse_device_mapping(value)
    assert reason in str(caught.value)
    assert repr(value) in str(caught.value)
    assert GRAMMAR in str(caught.value)


@given(devices)
def test_every_spelling_of_the_same_devices_reads_the_same(wanted):
    spellings = [wanted, ",".join(map(str, wanted)), "+".join(f"list(range({d},{d + 1}))" for d in wanted), str(wanted)]
    assert {parse_device_mapping(spelling) for spelling in spellings} == {tuple(wanted)}


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 7))
def test_range_means_what_it_means_in_python(start, length, step):
    expected = tuple(range(start, start + length, step))
    text = f"list(range({start}, {start + length}, {step}))"
    if expected:
        assert parse_device_mapping(text) == expected
    else:
        with pytest.raises(ValueError, match="no device"):
            parse_device_mapping(text)


@given(st.text(alphabet="0123456789,-+ []()rangelist", max_size=24))
def test_any_text_gives_distinct_devices_or_a_value_error(text):
    try:
        parsed = parse_device_mapping(text)
    except ValueError:
        return
    assert len(parsed) == len(set(parsed)) > 0
    assert min(parsed) >= 0

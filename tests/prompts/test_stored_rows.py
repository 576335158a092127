"""A prompt file passes by once; what is served lies on disk, in the order that it always had."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import environment
from tiny_models import numbered_tokenizer

from roll.core.configs.arguments import CurriculumConfig, DataArguments
from roll.core.errors import PromptFileError
from roll.prompts.prompt_file import EVERY_S, announced, read_rows
from roll.prompts.prompt_source import PromptSource, tokenize_prompts
from roll.prompts.stored_rows import Identities, Positions, RowFile, TokenizedRow, digest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3),
    max_leaves=8,
)


@given(extra=st.dictionaries(st.text(st.characters(codec="utf-8")), JSON, max_size=4), text=st.text(st.characters(codec="utf-8")))
def test_a_row_comes_back_as_it_was(extra, text):
    file = RowFile()
    rows = [TokenizedRow(f"{i}", "ab"[i % 2], "t", text, [i, 2**31], text, extra, [{"role": text}]) for i in range(4)]
    for row in rows:
        file.add(row)
    assert list(file.rows) == list(file) == rows and len(file) == 4
    assert {domain: list(of_domain) for domain, of_domain in file.by_domain().items()} == {"a": rows[::2], "b": rows[1::2]}
    assert list(file.rows[1:3]) == rows[1:3] and file.rows[-1] == rows[-1]


def test_the_file_has_no_name_and_lies_where_it_is_told(tmp_path):
    file = RowFile(tmp_path)
    file.add(TokenizedRow("0", "a", "t", "x", [1], "1"))
    assert file.rows[0].id == "0" and list(tmp_path.iterdir()) == []
    assert os.fstat(file._file.fileno()).st_dev == tmp_path.stat().st_dev


GOLDEN = {
    None: ("math/8 code/4 math/6 math/4 code/1 math/3 math/5 math/0 code/3", "551fe3ec0a897fe5", "a4001b65aa6a1fdb"),
    CurriculumConfig(spread=0.3): (
        "math/5 code/0 math/0 math/6 code/1 math/8 math/3 math/7 code/3", "b284340f3726d0f9", "ca226d964dcc26ea",
    ),
    CurriculumConfig(easiest="high", epochs=2): (
        "math/2 code/2 math/7 math/4 code/4 math/6 math/1 math/8 code/1", "e4dae3e687b6ab5b", "e1756f4f528b8410",
    ),
}  # fmt: skip
"""By version 1 of this sequence, which checkpoints continue: the first prompts and the hashes of the rows."""


@pytest.mark.parametrize("curriculum", GOLDEN)
def test_the_order_is_the_one_that_checkpoints_know(curriculum):
    file = RowFile()
    for domain, count in (("code", 5), ("math", 9)):
        for i in range(count):
            file.add(TokenizedRow(f"row/{i}", domain, "tag", f"text {i}", [i], str(i), {"difficulty": (i * 7) % 5}))
    source = PromptSource(file.by_domain(), {"code": 0.3, "math": 0.7}, 7, curriculum)
    order, code, math = GOLDEN[curriculum]
    assert " ".join(source.next().uid.replace("/0/row", "") for _ in range(9)) == order
    assert source.cursor()["data"] == {"code": code, "math": math}


@given(st.lists(st.lists(st.sampled_from("abcdefg"), max_size=6), max_size=4))
def test_identities_know_what_came_twice(files):
    identities, everything = Identities(), list[str]()
    for file in files:
        earlier = set(everything)
        for text in file:
            assert identities.in_earlier_file(text) == (text in earlier)
            identities.add(text)
            everything.append(text)
        assert identities.end_file() == {digest(text) for text in everything if everything.count(text) > 1}
    positions = Positions(map(digest, everything))
    assert all(positions.of(text) == [i for i, other in enumerate(everything) if other == text] for text in "abcdefgh")


def test_two_ids_with_the_same_digest_are_two_ids(tmp_path, monkeypatch):
    """As 64 bits may have it."""
    monkeypatch.setattr("roll.prompts.stored_rows.digest", len)
    monkeypatch.setattr("roll.prompts.prompt_file.digest", len)
    monkeypatch.setattr("roll.prompts.prompt_source.digest", len)
    path = tmp_path / "p.jsonl"
    rows = [{"id": name, "tag": "t", "prompt": "t3", "ground_truth": "1"} for name in ("a", "b", "cc", "d")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    usable, _ = tokenize_prompts(read_rows(DataArguments(file_name=str(path))), numbered_tokenizer(9), "none", 4, {"t": "d"})
    source = PromptSource(usable.by_domain(), {}, 1)
    served = [source.next() for _ in range(4)]
    source.restore(source.cursor(served))
    assert [source.next() for _ in range(4)] == served
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {**rows[1], "prompt": "t4"}]))
    with pytest.raises(PromptFileError, match=r"p.jsonl:5: id 'b' is that of .*p.jsonl:2 too"):
        list(read_rows(DataArguments(file_name=str(path))))


def test_a_long_reading_says_how_far_it_is(capsys):
    now = iter(range(0, 1000, 4))
    assert list(announced(range(7), "prompts of p.jsonl", lambda: next(now))) == list(range(7))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "prompts of p.jsonl: 3 read in 12 s",
        "prompts of p.jsonl: 6 read in 24 s",
        "prompts of p.jsonl: all 7 read in 32 s",
    ]
    assert EVERY_S == 10
    assert list(announced([], "nothing")) == [] and capsys.readouterr().err == ""


MEASURED = """
import resource, sys
from tiny_models import numbered_tokenizer
from roll.core.configs.arguments import DataArguments
from roll.prompts.prompt_file import read_rows
from roll.prompts.prompt_source import PromptSource, tokenize_prompts
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
def peak_of_reading(path, count):
    usable, skipped = tokenize_prompts(read_rows(DataArguments(file_name=path)), numbered_tokenizer(9), "none", 8, {"t": "d"})
    source = PromptSource(usable.by_domain(), {}, 1)
    assert len({source.next().uid for _ in range(len(usable))}) == len(usable) == count
    return peak()
few, many = (peak_of_reading(path, int(count)) for path, count in zip(sys.argv[1::2], sys.argv[2::2]))
print(many - few)
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_file_is_never_in_memory_as_a_whole(forks, tmp_path, ending):
    """96 MB: as Python's values they would be far more. What reading takes at all is known from a file of a twelfth."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = {tmp_path / f"{count}.{ending}": count for count in (500, 6000)}
    for path, count in files.items():
        alike = {"tag": "t", "ground_truth": "1"}
        rows = (alike | {"id": f"{i}", "prompt": f"t{i % 9}", "tests": f"{i} " * 3000} for i in range(count))
        if ending == "jsonl":
            with path.open("w") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=500)
    arguments = [str(each) for pair in files.items() for each in pair]
    told = forks.run(["-c", MEASURED, *arguments], tmp_path, environment(), tmp_path / "log.txt")
    assert int(told) < 60, "MiB"

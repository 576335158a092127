"""Incremental detokenisation finds a stop string at the token that completes it, wherever token borders fall."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from roll.core.workers.response_text import cut_at_stop
from roll.strategies.infer.stop_strings import StopStringMatcher


@given(
    text=st.text(alphabet="ab<>é漢🙂", max_size=30),
    stops=st.lists(st.text(alphabet="ab<é漢🙂", min_size=1, max_size=4), min_size=1, max_size=3),
)
@settings(max_examples=150, deadline=None)
def test_matches_exactly_when_the_text_so_far_contains_a_stop_string(lab: Any, text: str, stops: list[str]) -> None:
    tokenizer = lab.tokenizer()
    matcher = StopStringMatcher(tokenizer, stops)
    seen: list[int] = []
    for token in tokenizer.encode(text):
        seen.append(token)
        expected = any(stop in tokenizer.decode(seen) for stop in stops)
        assert matcher.push(token) == expected
        if expected:
            return


def test_cut_at_the_first_stop_string() -> None:
    assert cut_at_stop("one</a>two</b>", ["</b>", "</a>"], include=True) == "one</a>"
    assert cut_at_stop("one</a>two</b>", ["</b>", "</a>"], include=False) == "one"
    assert cut_at_stop("nothing", ["</a>"], include=False) == "nothing"

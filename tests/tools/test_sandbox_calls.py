"""The page on the sandbox's system calls has the table that the filter is made of."""

from pathlib import Path

from sandbox_calls import page

from roll.graders.sandbox.system_calls import ALLOWED

PAGE = Path(__file__).parents[2] / "docs_roll" / "sandbox_calls.md"


def test_the_page_in_the_repository_is_current():
    assert PAGE.read_text() == page(), "make it again: python tools/sandbox_calls.py > docs_roll/sandbox_calls.md"


def test_every_allowed_call_is_on_the_page_with_its_numbers_and_who_needs_it():
    text = page()
    for who, calls in ALLOWED.items():
        section = text.partition(f"## {who[0].upper()}{who[1:]}\n")[2].partition("\n## ")[0]
        for name, (x86, arm) in calls.items():
            line = next(line for line in section.splitlines() if line.startswith(f"| `{name}`"))
            assert line.endswith(f" | {x86} | {'' if arm is None else arm} |")

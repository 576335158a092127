"""Questions of the page, by name: plain questions to plain values, the same behind the server and inside a report; and the page:
its style and scripts as texts that a server sends, or one HTML file with the answers that it may ask for inside.

The policy of that file lets run its own scripts alone, by their hashes, and asks no server for anything."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

from roll.view.groups import GroupQuery, prompt_of
from roll.view.metrics import MOST_DRAWN, curve_names
from roll.view.run import RunReader
from roll.view.runs import MOST_COMPARED, Runs, compared, weighed

MOST_NAMES = 200
"""Curves of one question."""
MOST_PLACES = 200
"""Most other places of a prompt that are shown."""


class QueryParameters:
    """The parameters of a question, each any number of times."""

    def __init__(self, given: Sequence[tuple[str, str]]) -> None:
        self.given = given

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.given if key == name]

    def get(self, name: str, default: str = "") -> str:
        return next(iter(self.all(name)), default)

    def time(self, name: str) -> float | None:
        """Raises `ValueError`."""
        return float(said) if (said := self.get(name)) else None


def answer(runs: Runs, what: str, question: QueryParameters) -> Any:
    """Answers a question of the page. Raises `LookupError` for a missing thing, `ValueError` for a question that makes no
    sense."""
    return QUESTIONS[what](runs, question)


def _runs(runs: Runs, question: QueryParameters) -> object:
    return [{"name": name, "changed": place.stat().st_mtime} for name, place in runs.places().items()]


def _curves(runs: Runs, question: QueryParameters) -> object:
    """Returns the named curves; without names those of the panels."""
    run = _run(runs, question)
    names = question.all("name") or curve_names(run.status()["panels"])
    found = run.curves(names[:MOST_NAMES], int(question.get("since", "-1")))
    return {name: {"steps": list(curve.steps), "values": [rounded(one) for one in curve.values]} for name, curve in found.items()}


def _groups(runs: Runs, question: QueryParameters) -> object:
    selection = GroupQuery.parsed(dict(question.given))
    page = _run(runs, question).page(selection)
    return page._asdict() | {"rows": [row.plain() for row in page.rows]}


def _clock(runs: Runs, question: QueryParameters) -> object:
    """Returns `[step, seconds, tokens]`, as many as a chart has points."""
    found = [[step, round(seconds, 3), round(tokens)] for step, (seconds, tokens) in _run(runs, question).clock().items()]
    every = max(1, -(-len(found) // MOST_DRAWN))
    return found[::every] + (found[-1:] if (len(found) - 1) % every else [])


def _group(runs: Runs, question: QueryParameters) -> Any:
    found = _run(runs, question).content(question.get("key"))
    if found is None:
        raise LookupError("the rollouts of this group were not written down (rollout_log_per_step), or are there no more")
    return found


def _prompt(runs: Runs, question: QueryParameters) -> object:
    """Returns the same prompt at other steps, and in the other named runs."""
    uid = question.get("uid")
    found = [{"run": name, **one} for name in question.all("run") for one in runs.run(name).same_prompt(uid)]
    return {"prompt": prompt_of(uid), "total": len(found), "places": found[:MOST_PLACES]}


def _lanes(runs: Runs, question: QueryParameters) -> object:
    width = int(question.get("width", "1000"))
    return _run(runs, question).picture(question.time("from"), question.time("to"), width)


def _run(runs: Runs, question: QueryParameters) -> RunReader:
    return runs.run(question.get("run"))


def rounded(value: float) -> float:
    """Rounds to six digits: more than a curve can show, and half as long."""
    return float(f"{value:.6g}")


QUESTIONS: Mapping[str, Callable[[Runs, QueryParameters], object]] = {
    "runs": _runs,
    "status": lambda runs, question: _run(runs, question).status(),
    "newest": lambda runs, question: _run(runs, question).newest(),
    "curves": _curves,
    "clock": _clock,
    "funnel": lambda runs, question: _run(runs, question).funnel(),
    "groups": _groups,
    "group": _group,
    "prompt": _prompt,
    "lanes": _lanes,
    "compare": lambda runs, question: compared({name: runs.run(name) for name in question.all("run")}),
    "weighed": lambda runs, question: weighed(runs.places()),
}


T = TypeVar("T")

MOST_ROWS = 20_000
"""Groups of a run in the table; of more, these are spread over all."""
MOST_CONTENT = 32_000_000
"""Bytes of rollouts, of all runs together."""
COLUMNS = 3_000
"""Detail of the lanes: a server would send more when one zooms in."""


def report(runs: Runs, groups: int) -> bytes:
    """`groups`: number of groups in each run whose rollouts are included. Raises `ValueError` if there is no run."""
    data = json.dumps(collected(runs, groups), separators=(",", ":"), allow_nan=False)
    style, chart, script = assets()
    allowed = " ".join(f"'{_hash(each)}'" for each in (chart, script))
    policy = f"default-src 'none'; script-src {allowed}; style-src '{_hash(style)}'; img-src data:; "
    policy += "base-uri 'none'; form-action 'none'"
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1"><title>roll</title>'
    safe = data.replace("<", "\\u003c")  # no text of a run can end the element
    scripts = f'<script type="application/json" id="data">{safe}</script><script>{chart}</script>'
    scripts += f'<script type="module">{script}</script>'
    return f'<!doctype html><html lang="en"><head>{head}<style>{style}</style></head><body>{scripts}</body></html>\n'.encode()


def collected(runs: Runs, groups: int) -> dict[str, Any]:
    """Returns the answers, by question and run."""
    known = answer(runs, "runs", QueryParameters([]))[:MOST_COMPARED]
    if not known:
        raise ValueError("there is no run: a run is a folder with config.yaml and metrics.jsonl")
    names = [run["name"] for run in known]
    data: dict[str, Any] = {
        "runs": known,
        "status": {},
        "newest": {},
        "curves": {},
        "clock": {},
        "funnel": {},
        "lanes": {},
        "groups": {},
        "group": {},
    }
    room = MOST_CONTENT
    for name in names:
        of_run = [("run", name)]
        for what in ("status", "newest", "clock", "funnel"):
            data[what][name] = answer(runs, what, QueryParameters(of_run))
        status = data["status"][name]
        asked = dict.fromkeys([*status["names"], *curve_names(status["panels"])])
        data["curves"][name] = {}
        for metric in asked:
            data["curves"][name] |= answer(runs, "curves", QueryParameters([*of_run, ("name", metric)]))
        data["lanes"][name] = answer(runs, "lanes", QueryParameters([*of_run, ("width", str(COLUMNS))]))
        data["group"][name] = dict(_contents(runs, name, groups, room // len(names)))
        data["groups"][name] = _rows(runs, name, data["group"][name].keys())
    data["compare"] = answer(runs, "compare", QueryParameters([("run", name) for name in names])) if len(names) > 1 else None
    data["weighed"] = answer(runs, "weighed", QueryParameters([]))
    return data


def _contents(runs: Runs, name: str, most: int, room: int) -> Iterator[tuple[str, object]]:
    """Yields rollouts of groups that are spread over the run, as many as there is room for."""
    run = runs.run(name)
    run.look(run.samples)
    for key in spread(list(run.samples.groups), most):
        found = run.content(key)
        room -= len(json.dumps(found))
        if room < 0:
            return
        if found is not None:
            yield key, found


def _rows(runs: Runs, name: str, readable: Container[str]) -> dict[str, object]:
    groups = runs.run(name).groups()
    chosen = spread(groups, MOST_ROWS) if len(groups) > MOST_ROWS else groups
    rows = [group.plain() | {"kept": group.key in readable} for group in chosen]
    domains, explorers = {group.domain for group in groups}, {group.explorer for group in groups}
    return {"rows": rows, "domains": sorted(domains), "explorers": sorted(explorers - {""})}


def spread(values: Sequence[T], most: int) -> list[T]:
    """Returns at most so many, evenly over all of them, the first and the last included."""
    if len(values) <= most or most < 2:
        return list(values[: max(most, 0)])
    return [values[i * (len(values) - 1) // (most - 1)] for i in range(most)]


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


MODULES = (
    "dom", "link", "offline", "source", "chart", "curves", "status", "lanes", "groups", "tokens", "group", "frontier",
    "compare", "app",
)  # fmt: skip
"""Each after those that it imports."""


class Assets(NamedTuple):
    style: str
    chart: str
    """uPlot, as released."""
    script: str
    """The modules as one: imports from each other are resolved."""


def assets() -> Assets:
    parts = (re.sub(r"^import .*\n", "", static_text(f"{name}.js"), flags=re.MULTILINE) for name in MODULES)
    script = "\n".join(re.sub(r"^export ", "", part, flags=re.MULTILINE) for part in parts)
    return Assets(static_text("uPlot.min.css") + static_text("style.css"), static_text("uPlot.iife.min.js"), script)


def static_text(name: str) -> str:
    return (files("roll.view") / "static" / name).read_text(encoding="utf-8")

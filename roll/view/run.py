"""One run, read as far as it is asked for: its state, and the readers of its files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from roll.core.configs.ppo import AUDITED
from roll.core.configs.staleness import staleness_bound
from roll.core.data.untrusted import open_inside
from roll.core.distributed.processes import Process
from roll.core.record.estimates import ACCURACY, ERRORS, ROLLOUTS, SCORE, Validated
from roll.core.record.run_identity import DATABASE
from roll.reports.learning_curve import REWARD
from roll.reports.verdict import CUT, STEP_S, Curve, Verdict, verdict, with_best
from roll.view.content import Pieces, content, first_rollout, pieces
from roll.view.groups import EndedGroups, GroupPage, GroupQuery, GroupRow, all_groups, page, prompt_of
from roll.view.journal import list_of, mapping, number, shown, text, whole
from roll.view.lanes import Lanes
from roll.view.metrics import Metrics, panels, thinned
from roll.view.samples import Samples

if TYPE_CHECKING:
    from roll.view.members import Members

T = TypeVar("T")

LARGEST_FILE = 8 << 20
"""Bytes of config.yaml and of summary.json."""
SILENT_S = 600.0
"""A run that has written nothing for so long is said to be silent."""
LATEST = ("summary.json", "metrics.jsonl", "groups.jsonl", "samples.jsonl")


class RunReader:
    """One run; several threads may use it: of the curves, the groups and the lanes, one reads each at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._curving, self._grouping, self._tracing = RLock(), RLock(), RLock()
        self.metrics = Metrics(folder)
        self.statuses = EndedGroups(folder)
        self.samples = Samples(folder)
        self.lanes = Lanes(folder)
        self._members: Members | None = None
        self.problems: dict[str, str] = {}
        """File -> the reason why it cannot be read."""
        self._pieces: Pieces | None = None

    @property
    def config(self) -> dict[str, object]:
        return self._whole_file(
            "config.yaml", lambda contents: yaml.load(contents, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        )

    @property
    def summary(self) -> dict[str, object]:
        return self._whole_file("summary.json", json.loads)

    def _whole_file(self, name: str, parse: Callable[[bytes], object]) -> dict[str, object]:
        """Returns the file's content; empty, with a problem, where it has none."""
        self.problems.pop(name, None)
        try:
            with open_inside(self.folder, name) as file:
                found = parse(file.read(LARGEST_FILE))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            self.problems[name] = str(error)
            return {}
        return found if isinstance(found, dict) else {}

    def look(self, *journals: Metrics | EndedGroups | Samples) -> None:
        for journal in journals:
            try:
                journal.look()
            except (OSError, ValueError) as error:
                self.problems[type(journal).__name__] = str(error)

    # -- what a page asks for -------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        with self._curving:
            self.look(self.metrics)
            summary, config = self.summary, self.config
            changed = max((changed_at(self.folder / name) for name in LATEST), default=0.0)
            state, reason = state_of(summary, changed)
            last, found_verdict = self.metrics.last, self._verdict(state, summary, config)
            bound = whole((mapping(summary.get("staleness"))).get("bound"))
            found = {
                "state": state,
                "reason": reason,
                "step": last_step(self.metrics),
                "max_steps": whole(config.get("max_steps")),
                "elapsed_s": number(summary.get("wall_s")),
                "left_s": left_s(summary, whole(config.get("max_steps"))) if state == "running" else None,
                "bound": staleness_bound(number(config.get("async_generation_ratio")) or 0) if bound is None else bound,
                "staleness": last.get("staleness/mean"),
                "verdict": found_verdict and {**found_verdict._asdict(), "level": found_verdict.level},
                "reward": last.get(REWARD),
                "cut": last.get(CUT),
                "validation": self._validation(),
                "idle": {shown(k): number(v) for k, v in mapping(summary.get("idle_share")).items()},
                "roles": [{k: shown(v) if isinstance(v, str) else number(v) for k, v in mapping(role).items()}
                          for role in list_of(summary.get("roles"))],
                "members": self._of_members(lambda members: members.rows()) or [],
                "events": self._events(summary),
                "audits": [_audit(name, mapping(one)) for name, one in self._whole_file(AUDITED, json.loads).items()],
                "panels": panels(self.metrics.names()),
                "names": self.metrics.names(),
            }  # fmt: skip
        return found

    def _verdict(self, state: str, summary: Mapping[str, object], config: Mapping[str, object]) -> Verdict | None:
        """Returns None for a run that trains nothing."""
        if config.get("mode") in ("bench", "explore"):
            return None
        counts = mapping(summary.get("groups"))
        dropped = {shown(name): whole(count) or 0 for name, count in mapping(counts.get("dropped")).items()}
        groups = {"trained": whole(counts.get("trained")) or 0, "dropped": dropped}
        found = verdict(self.metrics.curve, state, groups, self.metrics.names())
        return with_best(found, summary)

    def _validation(self) -> dict[str, object] | None:
        """Returns the newest validation."""
        curves = {name: self.metrics.curve(name) for name in (ACCURACY, SCORE, ERRORS, ROLLOUTS)}
        step = max((curves[name].steps[-1] for name in (ACCURACY, ERRORS) if len(curves[name].steps)), default=None)
        newest = {name: curve.values[-1] for name, curve in curves.items() if len(curve.steps) and curve.steps[-1] == step}
        found = Validated.of_row({"step": step, **newest})
        return found and found._asdict()

    def curves(self, names: list[str], since: int = -1) -> dict[str, Curve]:
        """Returns all points after step `since`, if given; else few enough to be drawn."""
        with self._curving:
            self.look(self.metrics)
            found = {name: self.metrics.curve(name, since) for name in names}
        return {name: thinned(curve) for name, curve in found.items()} if since < 0 else found

    def clock(self) -> dict[int, tuple[float, float]]:
        with self._curving:
            self.look(self.metrics)
            return self.metrics.clock()

    def groups(self) -> list[GroupRow]:
        with self._grouping:
            self.look(self.statuses, self.samples)
            owners = self._of_members(lambda members: members.owners())
            found = all_groups(self.statuses, self.samples)
            if not owners:
                return list(found)
            return [group._replace(explorer="" if group.group_id is None else owners.get(group.group_id, "")) for group in found]

    def page(self, selection: GroupQuery) -> GroupPage:
        return page(self.groups(), selection)

    def funnel(self) -> dict[str, object]:
        """Returns ended groups with their reasons, as the journal has them, and running ones, from the summary."""
        with self._grouping:
            self.look(self.statuses)
            statuses = [[status, reason, count] for (status, reason), count in sorted(self.statuses.counts.items())]
            return {"counts": _counts(self.summary), "statuses": statuses}

    def content(self, key: str) -> dict[str, object] | None:
        """Returns the rollouts of a group at a step; None if they were not recorded, or exist no more."""
        with self._grouping:
            self.look(self.samples)
            group = self.samples.groups.get(key)
            step, _, group_id = key.partition("/")
            if group is None and step.isdigit() and group_id.isdigit():
                group = self.samples.of(int(group_id), int(step))
            if group is None:
                return None
            if self._pieces is None or self._pieces.unknown:
                self._pieces = pieces(self.folder, text(self.config.get("pretrain")))
            found = content(self.samples, group, self._pieces)
        phases = self.lanes.phases(group.group_id) if group.group_id is not None else []
        return found | {"phases": phases, "images": self._seen(found)}

    def _seen(self, found: Mapping[str, Any]) -> dict[str, str]:
        """Returns thumbnails of the images that the texts of a group's content name."""
        texts = [found["prompt"]]
        for sample in found["samples"]:
            texts += [sample.get("prompt", ""), *(turn["observation"] for turn in sample["turns"])]
        if not any("\u27e6image " in each for each in texts):
            return {}
        from roll.view.thumbnails import thumbnails

        return thumbnails(self.folder, texts)

    def newest(self) -> dict[str, object] | None:
        """Returns a rollout of the last step that recorded some; None before that."""
        with self._grouping:
            self.look(self.samples)
            group = max(self.samples.groups.values(), key=lambda group: (group.step, group.group_id or -1), default=None)
            return None if group is None else first_rollout(self.samples, group)

    def same_prompt(self, uid: str) -> list[dict[str, object]]:
        """Lists the prompt's groups whose rollouts can be read, of all epochs."""
        with self._grouping:
            self.look(self.samples)
            wanted = prompt_of(uid)
            groups = [group for group in self.samples.groups.values() if prompt_of(group.uid) == wanted]
        return [{"key": g.key, "step": g.step, "status": g.status, "reward": g.reward, "length": g.length} for g in groups]

    def picture(self, begin: float | None, end: float | None, width: int) -> dict[str, object]:
        with self._tracing:
            self.lanes.look()
            return self.lanes.picture(begin, end, width)

    def _of_members(self, ask: Callable[[Members], T]) -> T | None:
        """Returns None without a database; then SQLAlchemy is not imported."""
        self.problems.pop("members", None)
        if not os.path.lexists(self.folder / DATABASE):
            return None
        from roll.view.members import Members

        self._members = self._members or Members(self.folder)
        try:
            return ask(self._members)
        except (OSError, ValueError) as error:
            self.problems["members"] = str(error)
            return None

    def _events(self, summary: Mapping[str, object]) -> list[dict[str, str]]:
        """Lists events that the user should know, the gravest first."""
        found = [{"level": "error", "text": shown(problem)} for problem in self.problems.values()]
        for journal in (self.metrics, self.statuses, self.samples):
            if lost := journal.damaged + journal.left_out:
                what = f"{journal.damaged:,} lines are no rows, {journal.left_out:,} rows too many"
                found.append({"level": "error", "text": f"{lost:,} rows of a journal are left out: {what}"})
        if (self.folder / "traceback.txt").is_file():
            found.append({"level": "error", "text": "an error ended the run: traceback.txt"})
        stacks = sorted(path.name for path in (self.folder / "stacks").glob("*.txt"))
        found += [{"level": "warning", "text": f"something took too long: stacks/{shown(name)}"} for name in stacks[-20:]]
        if restarts := whole(summary.get("engine_restarts")):
            found.append({"level": "warning", "text": f"engines were replaced {restarts:,} times"})
        alarms = [alarm for alarm in list_of(summary.get("alarms")) if isinstance(alarm, dict)]
        found += [{"level": "error", "text": f"alarm: {shown(alarm.get('text'))}"} for alarm in alarms]
        found += [{"level": "warning", "text": shown(warning)} for warning in list_of(summary.get("warnings"))]
        return found + [{"level": "advice", "text": shown(line)} for line in list_of(summary.get("advice"))]


def state_of(summary: Mapping[str, object], changed: float) -> tuple[str, str]:
    """Returns state and reason: those of the summary, and `crashed` if the process that it names is gone. `changed`: time of the
    run's last write."""
    state, reason = shown(summary.get("status")), shown(summary.get("reason"))
    if not summary:
        return "unknown", "there is no summary.json"
    process = Process.read(summary.get("process"))
    if state == "running" and process is not None and process.alive is False:
        return "crashed", f"process {process.pid} is gone, and did not say why"
    if state == "running" and time.time() - changed > SILENT_S:
        return "silent", f"nothing was written for {(time.time() - changed) / 60:.0f} min"
    return state, reason


def left_s(summary: Mapping[str, object], max_steps: int | None) -> float | None:
    """Returns the seconds to the end, if all steps take as long as those of this process did."""
    wall, step, first = (number(summary.get(key)) for key in ("wall_s", "steps", "resumed_from_step"))
    done = (step or 0) - (first or 0)
    return wall / done * (max_steps - (step or 0)) if wall and done > 0 and max_steps is not None else None


def last_step(metrics: Metrics) -> int | None:
    steps = metrics.curve(STEP_S).steps or metrics.curve(ACCURACY).steps
    return steps[-1] if len(steps) else None


def _audit(name: str, audit: Mapping[str, object]) -> dict[str, object]:
    """Returns the payments of an environment or a reward before training, and the best-paid of the players that cannot do the
    task."""
    earned = {shown(kind): number(mean) or 0.0 for kind, mean in mapping(audit.get("earned")).items()}
    best = max((kind for kind in earned if kind not in ("reference", "random")), key=lambda kind: earned[kind], default="")
    told = {told: [shown(each) for each in list_of(audit.get(told))] for told in ("problems", "notes", "changed")}
    paid = {"reference": earned.get("reference"), "chance": earned.get("random"), "best": best, "pays": earned.get(best)}
    return {"name": shown(name), "tasks": whole(audit.get("tasks")), **told, **paid}


def _counts(summary: Mapping[str, object]) -> dict[str, int | None]:
    counts = mapping(summary.get("groups"))
    return {name: whole(counts.get(name)) for name in ("admitted", "buffered", "in_flight", "trained", "reused")}


def changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0

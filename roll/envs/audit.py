"""Does a reward pay for the task? Before training, players that cannot do it (`players`) are let at some tasks of an environment
or of a reward worker (`arenas`), and what they earn is held against chance and against the reference answer, or the oracle.

A player that no reward should pay earns too much if its mean is above that of answers which are drawn, or always the same, by
more than a tenth of what separates the reference from them, and by more than three standard errors of the difference. Whatever
is found here, a policy finds in training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, stdev

from roll.core.data.sample import FULL_REWARD, Prompt, reaches
from roll.core.rewards.worker import RewardWorker
from roll.envs.arenas import Arena, EnvArena, PlayerRewards, RewardArena
from roll.envs.elsewhere import asked
from roll.graders.players import CHANCE, CLOCK, KINDS, SENSELESS, STOPPED, players

REFERENCE = "reference"
CONSTANT_PAYS = "one answer for all tasks earns"
SHARE, ERRORS = 0.1, 3.0
"""Share of the distance from chance to the reference; standard errors."""


@dataclass(frozen=True, slots=True)
class Line:
    mean: float
    maximum: float
    failed: int
    """Tasks without a reward."""
    text: str


@dataclass(frozen=True, slots=True)
class AuditReport:
    target: str
    tasks: int
    players: Mapping[str, Line]
    problems: Sequence[str]
    notes: Sequence[str]
    success_at: float | None = None
    accepted: float | None = None
    """Share of the references that are a success."""
    step_ms: float = 0.0
    slowest_ms: float = 0.0
    exploits: Mapping[str, str] = field(default_factory=dict)
    """Kind of a player that earns more than it should, or of a constant that earns more than chance -> its text."""
    kinds: Mapping[str, str] = field(default_factory=lambda: {REFERENCE: "the oracle, or the reference answer", **KINDS})

    @property
    def ok(self) -> bool:
        return not self.problems


async def audit(target: str, arena: Arena, tasks: int, seed: int, success_at: float | None) -> AuditReport:
    """`success_at`: the reward from which on a task is done; None: that is not asked."""
    tried: dict[str, list[PlayerRewards]] = {}
    for player in players(arena.known, arena.words, arena.draw, seed):
        tried.setdefault(player.kind, []).append(await arena.earned(player))
    references = await arena.references()
    if references is not None:
        tried = {REFERENCE: [references], **tried}
    best = {kind: max(earned, key=_mean) for kind, earned in tried.items()}
    senseless = SENSELESS if arena.known else ("constant", *SENSELESS)
    problems = [*_paid(best, senseless, arena.advice), *_clock(tried, best), *_references(references, success_at)]
    failures, notes = list(_failures(best)), list(_notes(best, references, success_at))
    (problems if arena.takes_all or not _is_judged(best[CHANCE]) else notes).extend(failures)
    if not await arena.repeats():
        problems.append("the same task and the same answers earned something else the second time")
    seconds = arena.seconds
    return AuditReport(
        target,
        tasks,
        {name: _line(earned) for name, earned in best.items()},
        problems,
        notes,
        success_at,
        _accepted(references, success_at),
        1e3 * fmean(seconds) if seconds else 0.0,
        1e3 * max(seconds, default=0.0),
        {kind: earned.text for kind, earned in {**_overpaid(best, senseless), **_constant(best)}.items()},
    )


def _mean(earned: PlayerRewards) -> float:
    return fmean(earned.known) if earned.known else -math.inf


def _line(earned: PlayerRewards) -> Line:
    known = earned.known or [0.0]
    return Line(fmean(known), max(known), len(earned.values) - len(earned.known), earned.text)


def _accepted(references: PlayerRewards | None, success_at: float | None) -> float | None:
    if references is None or (success_at is None and not references.done):
        return None
    if success_at is None:
        return fmean(references.done)
    return fmean(value is not None and reaches(value, success_at) for value in references.values)


def _is_above(earned: PlayerRewards, other: PlayerRewards, top: float, luck: float = 0.0) -> bool:
    """True if it earns more than the other, beyond luck. `luck`: a standard error from elsewhere."""
    pairs = zip(earned.values, other.values, strict=True)
    gained = [one - another for one, another in pairs if one is not None and another is not None]
    if len(gained) < 2:
        return False
    error = math.hypot(stdev(gained) / math.sqrt(len(gained)), luck)
    return fmean(gained) > max(SHARE * abs(top - _mean(other)), ERRORS * error, 1e-9)


def _is_judged(earned: PlayerRewards) -> bool:
    """True if half of the tasks have a reward."""
    return 2 * len(earned.known) >= len(earned.values)


def _same(best: Mapping[str, PlayerRewards]) -> float | None:
    """The reward that everybody earns in every task; None: they do not earn the same, or some have no reward."""
    if not all(map(_is_judged, best.values())):
        return None
    everything = {value for earned in best.values() for value in earned.known}
    return everything.pop() if len(everything) == 1 else None


def _top(best: Mapping[str, PlayerRewards]) -> float:
    return _mean(best[REFERENCE]) if REFERENCE in best else max(max(earned.known, default=-math.inf) for earned in best.values())


def _paid(best: Mapping[str, PlayerRewards], senseless: Sequence[str], advice: str) -> Iterator[str]:
    chance, top = best[CHANCE], _top(best)
    if (same := _same(best)) is not None and (REFERENCE in best or same > 0):
        yield f"everybody earns {same:g}, whatever they write"
    elif REFERENCE in best and _is_judged(chance) and not _is_above(best[REFERENCE], chance, top):
        yield f"the reference earns {top:.3g} on average, which is no more than chance, {_mean(chance):.3g}"
    found = _overpaid(best, senseless)
    for mean in dict.fromkeys(map(_mean, found.values())):
        kinds = [kind for kind, earned in found.items() if _mean(earned) == mean]
        text = next((f", {shown(found[kind].text)}" for kind in kinds if found[kind].text), "")
        who = ", ".join(f"{kind} ({KINDS[kind]}{text})" if len(kinds) == 1 else kind for kind in kinds)
        yield f"pays for nonsense: {who}: {mean:.3g} on average{_against(best)}{advice if 'empty' in kinds else ''}"


def _overpaid(best: Mapping[str, PlayerRewards], senseless: Sequence[str]) -> dict[str, PlayerRewards]:
    """The players that no reward should pay so much."""
    honest = max([best[CHANCE]] if "constant" in senseless else [best[CHANCE], best["constant"]], key=_mean)
    return {kind: best[kind] for kind in senseless if kind in best and _is_above(best[kind], honest, _top(best))}


def _constant(best: Mapping[str, PlayerRewards]) -> dict[str, PlayerRewards]:
    """The constant player, if it earns more than chance."""
    return {"constant": best["constant"]} if _is_above(best["constant"], best[CHANCE], _top(best)) else {}


def _clock(tried: Mapping[str, Sequence[PlayerRewards]], best: Mapping[str, PlayerRewards]) -> Iterator[str]:
    """Yields a problem if the clock pays: beyond luck, as all tasks are played within seconds, by the same draws."""
    means = [_mean(earned) for earned in tried[STOPPED] if earned.known]
    luck = stdev(means) if len(means) > 1 else 0.0
    others = (STOPPED, CHANCE, "constant", "empty")
    if all(_is_above(best[CLOCK], best[kind], _top(best), luck) for kind in others):
        yield f"depends on the clock: who watches it earns {_mean(best[CLOCK]):.3g} on average{_against(best)}"


def _against(best: Mapping[str, PlayerRewards]) -> str:
    reference = f", the reference {_mean(best[REFERENCE]):.3g}" if REFERENCE in best else ""
    return f"; chance earns {_mean(best[CHANCE]):.3g}{reference}"


def _references(references: PlayerRewards | None, success_at: float | None) -> Iterator[str]:
    accepted = _accepted(references, success_at)
    if accepted is not None and accepted < 0.5:
        yield _not_accepted(accepted, success_at)


def _not_accepted(accepted: float, success_at: float | None) -> str:
    return f"{1 - accepted:.0%} of the references are no success" + ("" if success_at is None else f" (less than {success_at:g})")


def _notes(best: Mapping[str, PlayerRewards], references: PlayerRewards | None, success_at: float | None) -> Iterator[str]:
    accepted = _accepted(references, success_at)
    if references is None:
        nothing = ", and nobody earns anything" if _same(best) == 0 else ""
        yield f"there is no oracle or reference answer to compare with{nothing}"
    elif accepted is not None and 0.5 <= accepted < 1:
        yield _not_accepted(accepted, success_at)
    for constant in _constant(best).values():
        yield f"{CONSTANT_PAYS} {_mean(constant):.3g}, more than chance: {shown(constant.text)}"


def _failures(best: Mapping[str, PlayerRewards]) -> Iterator[str]:
    for kind, earned in best.items():
        if earned.failures:
            yield f"{kind}: {len(earned.failures)} of {len(earned.values)} tasks have no reward: {earned.failures[0]}"


def shown(text: str, most: int = 60) -> str:
    line = repr(text)
    return line if len(line) <= most else f"{line[: most - 4]}...{line[0]}"


def audit_env(
    target: str,
    env_type: str,
    env_config: Mapping[str, object],
    tasks: int,
    seed: int,
    most_turns: int,
    success_at: float | None,
    python: str | None = None,
) -> AuditReport:
    """Audits in the interpreter `python`; None: in this one. Raises `ConfigError`."""
    told = asked(python, _audit_env, target, env_type, dict(env_config), tasks, seed, most_turns, success_at)
    return AuditReport(**{**told, "players": {name: Line(**line) for name, line in told["players"].items()}})


async def _audit_env(
    target: str, env_type: str, env_config: Mapping[str, object], tasks: int, seed: int, most_turns: int, success_at: float | None
) -> AuditReport:
    arena = EnvArena(env_type, env_config, tasks, seed, most_turns)
    try:
        return await audit(target, arena, tasks, seed, success_at)
    finally:
        arena.close()


async def audit_reward(
    target: str, worker: RewardWorker, prompts: Sequence[Prompt], seed: int, success_at: float | None
) -> AuditReport:
    """Raises the errors of the worker's `start`."""
    await worker.start()
    try:
        at = FULL_REWARD if success_at is None else success_at
        return await audit(target, RewardArena(worker, prompts), len(prompts), seed, at)
    finally:
        await worker.close()


def as_mapping(report: AuditReport) -> dict[str, object]:
    """The report as plain values, for `--json`."""
    return {"ok": report.ok, **asdict(report)}


def as_text(report: AuditReport) -> Iterator[str]:
    accepted = "" if report.accepted is None else f", {report.accepted:.0%} of the references are successes"
    duration = f"a step takes {report.step_ms:.2g} ms, the slowest {report.slowest_ms:.2g} ms"
    yield f"{report.target}: {report.tasks} tasks{accepted}, {duration}"
    yield f"  {'player':13} {'mean':>8} {'max':>8}  {'without':>7}  what it writes"
    for name, line in report.players.items():
        text = shown(line.text) if line.text else KINDS.get(name, "")
        earned = f"{'–':>8} {'–':>8}" if line.failed >= report.tasks else f"{line.mean:8.3f} {line.maximum:8.3f}"
        yield f"  {name:13} {earned}  {line.failed or '':>7}  {text}".rstrip()
    yield from (f"  note: {note}" for note in report.notes)
    yield from (f"  problem: {problem}" for problem in report.problems)
    yield "  ok" if report.ok else f"  problems: {len(report.problems)}"

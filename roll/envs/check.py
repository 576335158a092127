"""Is an environment fit to train in? Plays it with a random agent, an oracle if it has one, and nonsense, and tests what the
interface promises; one of gymnasium is shown to gymnasium's own checker, too. What a random agent and an oracle get is also the
scale on which a trained policy's reward is read.

Without `sample_action` (`interface`) the random agent writes nonsense; without `oracle_action` there is no oracle, and one that
has no action any more (None) gives up. An episode is shown as text, turn by turn (`render`), as `roll env play` shows it, too."""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from textwrap import indent
from typing import Any

from roll.core.configs.arguments import ImageArguments
from roll.core.configs.redact import visible
from roll.core.configs.sizes import counted
from roll.core.data.sample import EpisodeEnd, Turn
from roll.core.data.seeding import derive_seed
from roll.core.errors import EnvFailure
from roll.envs.elsewhere import asked
from roll.envs.environment import UNSEEN, AnyTextEnv, checked_reset, checked_step, seen, unseen
from roll.envs.registry import make_env
from roll.envs.rules import instructions

NONSENSE = "no action at all \u2603"
MOST_TURNS = 1000
"""Most turns of an episode: an episode that neither terminates nor truncates itself is ended here, and reported."""
SHOWN_TURNS = 20
"""Turns of the episode that is shown."""
Policy = Callable[[str], str | None]
"""Text that it sees -> text that it writes; None: it gives up."""
ENDINGS: dict[EpisodeEnd, str] = {
    "terminated": "terminated",
    "truncated": "truncated by the environment",
    "max_steps": "truncated by max_steps",
    "context": "truncated: the context is full",
}


@dataclass(frozen=True, slots=True)
class Episode:
    seed: int
    turns: list[Turn]
    last_observation: str
    end: EpisodeEnd | None = None
    """None if it broke off, the policy gave up, or it has `MOST_TURNS` turns."""
    success: bool | None = False
    """None if it came to its end, and the environment does not say."""
    error: str = ""
    """The reason why it broke off."""
    missing: frozenset[str] = frozenset()
    """Keys of `info` that every step has to have, and some did not."""
    unruled: bool = field(default=False, compare=False)
    """The rules are not among the messages that it shows."""
    reset_s: float = field(default=0.0, compare=False)
    steps_s: float = field(default=0.0, compare=False)
    """Seconds of all steps together."""

    @property
    def total_reward(self) -> float:
        return sum(turn.reward for turn in self.turns)


@dataclass(frozen=True, slots=True)
class AgentReport:
    """Means over the episodes of one agent."""

    episodes: int
    mean_return: float
    min_return: float
    max_return: float
    mean_turns: float
    success_share: float | None
    """None if the environment does not say which episodes are successes."""
    invalid_share: float
    """Share of actions that are not valid."""
    effective_share: float
    """Share of actions that changed the state."""


@dataclass(frozen=True, slots=True)
class EnvReport:
    env_type: str
    instructions: str
    agents: Mapping[str, AgentReport]
    """random and, if there is one, oracle."""
    errors: Sequence[str] = ()
    """Promises that are broken; an environment with one is not fit."""
    notes: Sequence[str] = ()
    """Unusual findings that may be meant."""
    example: str = field(default="", repr=False)
    """One episode, rendered: the oracle's, or else the random agent's; of a long one its beginning."""
    reset_ms: float = 0.0
    step_ms: float = 0.0
    """Means over the random agent's episodes, wall-clock, on the event loop."""

    @property
    def ok(self) -> bool:
        return not self.errors


def check_env(
    env_type: str, env_config: Mapping[str, object], episodes: int = 20, seed: int = 0, python: str | None = None
) -> EnvReport:
    """Plays each agent for `episodes` episodes with seeds derived from `seed`, in the interpreter `python` (None: this one).
    Raises `ConfigError` if the environment cannot be made; later failures are in the report."""
    told = asked(python, _check, env_type, dict(env_config), episodes, seed)
    return EnvReport(**{**told, "agents": {name: AgentReport(**agent) for name, agent in told["agents"].items()}})


async def _check(env_type: str, env_config: Mapping[str, object], episodes: int, seed: int) -> EnvReport:
    env = make_env(env_type, env_config)
    seeds = [derive_seed("env-check", seed, i) for i in range(episodes)]
    rng = random.Random(seed)
    sample = getattr(env, "sample_action", None)
    oracle = getattr(env, "oracle_action", None)
    played = {"random": [await play(env, s, lambda _: NONSENSE if sample is None else sample(rng)) for s in seeds]}
    if oracle is not None:
        played["oracle"] = [await play(env, s, lambda _: oracle()) for s in seeds]
    nonsense = [await play(env, s, lambda _: NONSENSE, most_turns=3) for s in seeds[:3]]
    repeated = await again(env_type, env_config, played["random"])
    of_gymnasium = getattr(env, "checked", None)
    refused, warned = ([], []) if of_gymnasium is None else of_gymnasium()
    env.close()
    everything = [episode for some in (*played.values(), nonsense) for episode in some]
    notes = [*_notes(env, played, nonsense), *(f"gymnasium's checker warns: {warning}" for warning in warned)]
    if sample is None:
        notes.append("it has no sample_action(rng): the random agent wrote nonsense")
    shown = next((e for e in (*played.get("oracle", ()), *played["random"]) if e.turns), None)
    return EnvReport(
        env_type,
        str(instructions(env)),
        {name: _report(some) for name, some in played.items() if any(episode.turns for episode in some)},
        [*_errors(everything, played["random"], repeated), *(f"gymnasium's checker refuses it: {why}" for why in refused)],
        notes,
        "" if shown is None else _example(shown),
        reset_ms=1e3 * fmean(episode.reset_s for episode in played["random"]),
        step_ms=1e3 * sum(e.steps_s for e in played["random"]) / max(1, sum(len(e.turns) for e in played["random"])),
    )


def _example(episode: Episode) -> str:
    """The episode, of a long one its beginning."""
    if len(episode.turns) <= SHOWN_TURNS:
        return render(episode.turns, episode.end, episode.success, episode.last_observation)
    rest = len(episode.turns) - SHOWN_TURNS
    beginning = render(episode.turns[:SHOWN_TURNS], None, False).rpartition("\n")[0]
    return f"{beginning}\n... {rest} more turns\n{summary(episode.turns, episode.end, episode.success)}"


def looked_at(part: Mapping[str, Any]) -> str:
    """The mark of an image, which is checked as in a run, and stored nowhere. Raises `ValueError`."""
    from roll.prompts.shown_images import ShownImages  # for who shows images alone: an interpreter of others need not have Pillow

    return ShownImages(ImageArguments(), None)(part)


async def play(env: AnyTextEnv, seed: int, policy: Policy, most_turns: int = MOST_TURNS) -> Episode:
    """One episode; it ends early when the policy has no action."""
    turns: list[Turn] = []
    observation, missing, unruled = "", set(), False
    end: EpisodeEnd | None = None
    success: bool | None = False
    trouble = ""
    reset_s = steps_s = 0.0
    try:
        started = time.perf_counter()
        first, info = checked_reset(await _maybe_awaited(env.reset(seed)), looked_at)
        observation, unruled = seen(first), unseen(str(instructions(env)), first)
        reset_s = time.perf_counter() - started
        while end is None and len(turns) < most_turns and (action := policy(observation)) is not None:
            key = str(info.get("state_key", ""))
            started = time.perf_counter()
            following, reward, terminated, truncated, info = checked_step(await _maybe_awaited(env.step(action)), looked_at)
            steps_s += time.perf_counter() - started
            valid, effective = bool(info.get("action_is_valid", True)), bool(info.get("action_is_effective", True))
            turns.append(Turn(observation, action, reward, key, valid, effective, tokens=0))
            observation = seen(following)
            missing |= {"action_is_valid", "action_is_effective"} - set(info)
            if terminated or truncated:
                end = "terminated" if terminated else "truncated"
                success = bool(info["success"]) if "success" in info else None
    except EnvFailure as failure:
        trouble = failure.message
    except Exception as error:  # boundary: whatever an environment raises is a finding
        trouble = f"{type(error).__name__}: {error}"
    return Episode(seed, turns, observation, end, success, trouble, frozenset(missing), unruled, reset_s, steps_s)


async def again(env_type: str, env_config: Mapping[str, object], episodes: Sequence[Episode]) -> list[Episode]:
    """The same seeds and actions, in another instance and in the opposite order: nothing may depend on the history."""
    env = make_env(env_type, env_config)
    repeated = []
    for episode in reversed(episodes):
        if episode.error:  # its last action is not known
            repeated.append(episode)
            continue
        actions = iter([turn.action for turn in episode.turns])
        repeated.append(await play(env, episode.seed, lambda _, actions=actions: next(actions, None)))  # type: ignore[misc]
    env.close()
    return repeated[::-1]


async def _maybe_awaited(answer: object) -> object:
    return await answer if inspect.isawaitable(answer) else answer


def _is_endless(episode: Episode) -> bool:
    return len(episode.turns) >= MOST_TURNS and not episode.end


def _errors(everything: Sequence[Episode], first: Sequence[Episode], again: Sequence[Episode]) -> list[str]:
    errors = [f"seed {episode.seed}, turn {len(episode.turns) + 1}: {episode.error}" for episode in everything if episode.error]
    if any(one != other for one, other in zip(first, again, strict=True)):
        errors.append("the same seed and actions gave other observations, rewards or endings in another instance")
    if all(map(_is_endless, first)):
        errors.append(f"no episode ends: step has returned neither terminated nor truncated within {MOST_TURNS} turns")
    missing = sorted({key for episode in everything for key in episode.missing})
    if missing:
        errors.append(f"info has no {', '.join(missing)}")
    return list(dict.fromkeys(errors))


def _notes(env: AnyTextEnv, played: Mapping[str, Sequence[Episode]], nonsense: Sequence[Episode]) -> list[str]:
    notes = []
    starts = {episode.turns[0].observation for episode in played["random"] if episode.turns}
    if len(starts) == 1 and len(played["random"]) > 1:
        notes.append("all seeds begin with the same observation")
    if not (rules := str(instructions(env)).strip()):
        notes.append("instructions are empty: the agent learns the rules from the observations alone")
    elif getattr(env, "instructions", None) is None:
        notes.append("it has no `instructions`: the docstring of its class is taken for them")
    if rules and any(episode.unruled for some in played.values() for episode in some):
        notes.append(UNSEEN)
    if any(turn.is_valid for episode in nonsense for turn in episode.turns):
        notes.append(f"the text {NONSENSE!r} counts as a valid action")
    silent, drawn = _per_turn(nonsense), _per_turn(played["random"])
    if silent > drawn and drawn < 0:
        earned = f"a text without an action earns {silent:.3g} a turn, a random action {drawn:.3g}"
        notes.append(f"{earned}: writing none is cheaper than playing (format_penalty; roll env audit says more)")
    if not any(turn.state_key for some in played.values() for episode in some for turn in episode.turns):
        notes.append("info has no state_key: gigpo cannot be used")
    episodes = [episode for some in played.values() for episode in some]
    if any(episode.success is None for episode in episodes):
        notes.append("info has no success in an episode's last step: the tag's success_at has to say which score is one")
    endless = sum(map(_is_endless, episodes))
    if 0 < endless < len(episodes):
        notes.append(f"{endless} episodes had not ended after {MOST_TURNS} turns: only the tag's max_steps will end them")
    longest = max(len(episode.turns) for episode in episodes)
    if longest and all(episode.end == "truncated" for episode in episodes if episode.turns):
        notes.append(f"no episode ends of its own: each was cut short, after {longest} turns at the latest (max_steps)")
    oracle = played.get("oracle", ())
    acts = any(episode.turns for episode in oracle)  # a game for which no good player is known has no oracle
    failed = sum(episode.success is False for episode in oracle)
    if acts and failed:
        notes.append(f"the oracle fails in {failed} of {len(oracle)} episodes")
    return notes


def _per_turn(episodes: Sequence[Episode]) -> float:
    """Mean reward of a turn."""
    return sum(episode.total_reward for episode in episodes) / max(1, sum(len(episode.turns) for episode in episodes))


def _report(episodes: Sequence[Episode]) -> AgentReport:
    returns = [episode.total_reward for episode in episodes]
    turns = [turn for episode in episodes for turn in episode.turns]
    return AgentReport(
        episodes=len(episodes),
        mean_return=fmean(returns),
        min_return=min(returns),
        max_return=max(returns),
        mean_turns=len(turns) / len(episodes),
        success_share=None if any(e.success is None for e in episodes) else fmean(e.success is True for e in episodes),
        invalid_share=fmean(not turn.is_valid for turn in turns),
        effective_share=fmean(turn.is_effective for turn in turns),
    )


def as_mapping(report: EnvReport) -> dict[str, object]:
    """The report as plain values, for `--json`."""
    return {"ok": report.ok, **asdict(report)}


def as_text(report: EnvReport) -> str:
    """The report as text, for a terminal."""
    columns = ("agent", "episodes", "return", "min", "max", "turns", "success", "invalid", "effective")
    rows = [
        (
            *(name, str(a.episodes), f"{a.mean_return:.3f}", f"{a.min_return:.3f}", f"{a.max_return:.3f}", f"{a.mean_turns:.1f}"),
            *("-" if share is None else f"{share:.0%}" for share in (a.success_share, a.invalid_share, a.effective_share)),
        )
        for name, a in report.agents.items()
    ]
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    table = [
        "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in (columns, *rows)
    ]
    verdict = "ok" if report.ok else counted(len(report.errors), "problem")
    return "\n".join(
        [
            *("instructions:", report.instructions or "(none)", "", "an episode:", report.example, "", *table, ""),
            *(f"a reset takes {report.reset_ms:.2g} ms, a step {report.step_ms:.2g} ms", ""),
            *(f"note: {note}" for note in report.notes),
            *(f"problem: {error}" for error in report.errors),
            f"{report.env_type}: {verdict}",
        ]
    )


def render(turns: Sequence[Turn], end: EpisodeEnd | None, success: bool | None, last_observation: str = "") -> str:
    """Returns lines for a terminal, which neither the model nor the environment can steer. `end`: None if the episode goes on.
    `last_observation`: the one after the last action."""
    lines: list[str] = []
    for number, turn in enumerate(turns, 1):
        lines += [f"turn {number}", _block(turn.observation) or "  (nothing)"]
        lines += [f"  > {visible(turn.action)}", f"  reward {turn.reward:g}{_flag(turn)}", ""]
    if last_observation:
        lines += ["end", _block(last_observation), ""]
    return "\n".join([*lines, summary(turns, end, success)])


def summary(turns: Sequence[Turn], end: EpisodeEnd | None, success: bool | None) -> str:
    """One line: how the episode ended, its return and its length."""
    ending = "not over" if end is None else ENDINGS[end] + {True: ", success", False: ", no success", None: ""}[success]
    invalid = sum(not turn.is_valid for turn in turns)
    complaint = f", {invalid} invalid actions" if invalid else ""
    return f"{ending}: return {sum(turn.reward for turn in turns):g} in {len(turns)} turns{complaint}"


def _flag(turn: Turn) -> str:
    return "  (invalid action)" if not turn.is_valid else "" if turn.is_effective else "  (no effect)"


def _block(text: str) -> str:
    return indent(visible(text, keep="\n\t"), "  ")

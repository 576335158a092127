"""Metrics of episodes, by tag. Each episode counts once, however many samples it became."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from roll.core.data.sample import Sample, Trajectory, Turn

LEAST_VALID = "env/least_valid"


def episode_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """`env/<tag>/...`: episodes, success, score, num_actions (turns), action_is_valid and action_is_effective (shares of turns),
    response_length (tokens of a turn), max_steps and context (shares of episodes that ended so), the environment's own numbers;
    `env/least_valid`: the least share of valid actions of a tag; `env/episodes`: how many there were; `env/time/...`: seconds
    of an episode spent on generation, in the environment, and waiting for a place in one."""
    metrics: dict[str, float] = {}
    for tag in sorted({sample.prompt.tag for sample in samples}):
        mine = [sample for sample in samples if sample.prompt.tag == tag]
        turns = [turn for sample in mine if sample.trajectory for turn in sample.trajectory.turns]
        metrics |= {f"env/{tag}/{name}": value for name, value in (_of_episodes(_episodes(mine)) | _of_turns(turns)).items()}
    valid = [share for name, share in metrics.items() if name.endswith("/action_is_valid")]
    metrics |= {LEAST_VALID: min(valid)} if valid else {}
    episodes = _episodes(samples)
    parts: dict[str, Callable[[Trajectory], float]] = {
        "generation_s": lambda episode: episode.generation_s,
        "environment_s": lambda episode: episode.environment_s,
        "waiting_s": lambda episode: episode.waiting_s,
    }
    metrics["env/episodes"] = float(len(episodes))
    return metrics | {f"env/time/{name}": fmean(map(part, episodes)) for name, part in parts.items() if episodes}


def episode_facts(samples: Sequence[Sample]) -> dict[str, list[float]]:
    """Returns the facts of a group's episodes, for its trace: turns and seconds of each, and the tokens of each answer."""
    episodes = _episodes(samples)
    return {
        "turns": [episode.num_turns for episode in episodes],
        "generation_s": [round(episode.generation_s, 4) for episode in episodes],
        "environment_s": [round(episode.environment_s, 4) for episode in episodes],
        "answer_tokens": [turn.tokens for sample in samples if sample.trajectory for turn in sample.trajectory.turns],
    }


def _episodes(samples: Sequence[Sample]) -> list[Trajectory]:
    return [sample.trajectory for sample in samples if sample.trajectory is not None and sample.begins_rollout]


def _of_episodes(episodes: Sequence[Trajectory]) -> dict[str, float]:
    if not episodes:
        return {}
    own = sorted({name for episode in episodes for name in episode.metrics})
    told = any(episode.success is not None for episode in episodes)
    return {
        "episodes": float(len(episodes)),
        **({"success": fmean(episode.success is True for episode in episodes)} if told else {}),
        "score": fmean(episode.score for episode in episodes),
        "num_actions": fmean(episode.num_turns for episode in episodes),
        "max_steps": fmean(episode.end == "max_steps" for episode in episodes),
        "context": fmean(episode.end == "context" for episode in episodes),
        **{name: fmean(episode.metrics[name] for episode in episodes if name in episode.metrics) for name in own},
    }


def _of_turns(turns: Sequence[Turn]) -> dict[str, float]:
    if not turns:
        return {}
    return {
        "action_is_valid": fmean(turn.is_valid for turn in turns),
        "action_is_effective": fmean(turn.is_effective for turn in turns),
        "response_length": fmean(turn.tokens for turn in turns),
    }

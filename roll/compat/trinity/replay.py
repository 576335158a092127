"""Trinity-RFT's experience buffer as far as it says how many experiences wait, in which order they are trained, and how often."""

from __future__ import annotations

from typing import Any

from roll.compat.roll.rule import KeyRule, ignored, lacking, off_or_lacking
from roll.compat.trinity.file import File, at, batches_ahead, is_count, tasks_of_a_batch

EXPERIENCES = "buffer.trainer_input.experience_buffer"
_BUFFER = f"{EXPERIENCES}.replay_buffer"


def replays(value: object, file: File) -> bool:
    """Whether groups are trained again; only an offset leaves places for it. `value`: of `enable`."""
    interval = at(file, "synchronizer.sync_interval", 1)
    later = is_count(interval) and batches_ahead(file) > 1 + interval
    return value is True and at(file, f"{_BUFFER}.reuse_cooldown_time") is not None and _uses(file) > 1 and later


def replays_anything(file: File) -> bool:
    return replays(at(file, f"{_BUFFER}.enable"), file)


def _uses(file: File) -> int:
    """How many steps may train a group: the limit of the one priority function that has one, else as many as its age allows."""
    named, limit = at(file, f"{_BUFFER}.priority_fn", "linear_decay"), at(file, f"{_BUFFER}.priority_fn_args.use_count_limit", 3)
    return limit if named == "decay_limit_randomization" and is_count(limit) else batches_ahead(file)


def _holds_all(value: Any, file: File) -> bool:
    """Whether admission lets no more groups wait than the buffer holds."""
    return not is_count(value) or value >= batches_ahead(file) * (tasks_of_a_batch(file) or 0)


REPLAY = (
    KeyRule(f"{EXPERIENCES}.capacity", "without effect", "admission lets no more groups wait: (1 + async_generation_ratio) x "
            "batch_size", when=_holds_all, values="(sync_interval + sync_offset) x batch_size or more"),
    lacking(f"{EXPERIENCES}.capacity", "groups that wait are bounded by admission, not by a capacity: write a smaller "
            "async_generation_ratio or async_pipeline_depth"),
    KeyRule(f"{_BUFFER}.enable", "alias", "read as max_reuse: use_count_limit of decay_limit_randomization, else as often as "
            "async_generation_ratio lets a group be trained. Fresh groups go first, then those that were trained least often, of "
            "these the newest", lambda v, f: {"max_reuse": _uses(f)}, replays,
            "true, with reuse_cooldown_time and a sync_offset of 2 or more"),
    *off_or_lacking(f"{_BUFFER}.enable", (False, None), "groups are trained again within the staleness bound: write "
                    "reuse_cooldown_time and a synchronizer.sync_offset of 2 or more. For the newest first, each once, write "
                    "groups_order: newest with staleness_policy: drop"),
    ignored(f"{_BUFFER}.reuse_cooldown_time", "a group may be trained again as soon as its step is done"),
    *off_or_lacking(f"{_BUFFER}.priority_fn", ("linear_decay", "decay_limit_randomization", None), "groups have one order: "
                    "groups_order and max_reuse"),
    ignored(f"{_BUFFER}.priority_fn_args.decay", "the number of uses always counts before the version"),
    ignored(f"{_BUFFER}.priority_fn_args.use_count_limit", "part of max_reuse"),
    *off_or_lacking(f"{_BUFFER}.priority_fn_args.sigma", (0, None), "the order is not random: write 0"),
)  # fmt: skip

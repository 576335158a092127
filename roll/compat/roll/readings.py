"""Keys that mean something else to ROLL, although they have the same name here: what a file written for ROLL is read as, so that
it keeps ROLL's meaning. Applied before the rules of the tables, to such files alone; differences.py tells what is not read so.

Of a key that the user wrote beside it, in this project's words, the user's value stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isclose, isfinite, sqrt
from typing import Any

from roll.compat.roll.keys_images import sees
from roll.compat.roll.rule import DROP, value_at
from roll.core.configs.rlvr import RLVRConfig

Path = tuple[str, ...]
Reads = Iterator[tuple[Path, Mapping[Path, Any]]]
"""A key as it was written, and the values to write, by their paths."""


@dataclass(frozen=True, slots=True)
class Reading:
    key: str
    """For the page; `<name>` is a name of the user's own."""
    values: str
    """The values or files that it is about, as text for the page."""
    note: str
    """ROLL's meaning."""
    reads: Callable[[Mapping[str, object]], Reads]
    told: bool = False
    """As `Note.told`; without `compat`, that the key is not read so."""


def number(value: Any) -> float | None:
    """A finite number; YAML 1.1 reads 1e-1 as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        read = float(value)
    except (ValueError, OverflowError):
        return None
    return read if isfinite(read) else None


def whole(value: Any, default: int | None = None) -> int | None:
    return default if value is None else value if type(value) is int else None


def blocks(mapping: Mapping[str, object], name: str) -> Iterator[tuple[Path, Mapping[str, object]]]:
    """The named blocks of a key."""
    entries = mapping.get(name)
    for each, block in entries.items() if isinstance(entries, Mapping) else ():
        if isinstance(each, str) and isinstance(block, Mapping):
            yield (name, each), block


ROWS = {"tag": "data_source", "ground_truth": "reward_model.ground_truth"}
"""Columns of rows with images, as ROLL reads them."""
MATH = "roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker"
DETECTION = "roll.pipeline.rlvr.rewards.detection_reward_worker.DetectionRewardWorker"
K3_CLAMP = 10.0


def _dual_clip(mapping: Mapping[str, object]) -> Reads:
    clip = number(mapping.get("pg_clip", 0.2))
    if mapping.get("dual_clip_loss") is True and clip is not None and clip > 0:
        yield ("dual_clip_loss",), {("dual_clip_c",): round(1 + 2 * clip, 12)}


def _clamped_kl(mapping: Mapping[str, object]) -> Reads:
    if mapping.get("use_kl_loss") is True:
        yield ("use_kl_loss",), {("kl_loss_clamp",): K3_CLAMP}


def _topr(mapping: Mapping[str, object]) -> Reads:
    if value_at(mapping, ("actor_train", "pg_variant")) == "topr":
        yield ("actor_train", "pg_variant"), {("actor_train", "topr_ratio_level"): "token"}


def _lengths(mapping: Mapping[str, object]) -> Reads:
    """ROLL overwrites what generation is told with the room that the lengths leave."""
    prompt, sequence = whole(mapping.get("prompt_length"), 1024), whole(mapping.get("sequence_length"))
    response = sequence - prompt if prompt is not None and sequence is not None else whole(mapping.get("response_length"))
    if response is None:
        return
    if whole(mapping.get("response_length")) not in (None, response):
        yield ("response_length",), {("response_length",): DROP}
    validation = response
    val_prompt, val_sequence = whole(mapping.get("val_prompt_length")), whole(mapping.get("val_sequence_length"))
    if val_prompt is not None and val_sequence is not None:
        validation = val_sequence - val_prompt
    for role, longest in (("actor_infer", response), ("validation", validation)):
        path = (role, "generating_args", "max_new_tokens")
        written = value_at(mapping, path)
        if longest != response and isinstance(mapping.get(role), Mapping):
            yield ("val_sequence_length",) if written is None else path, {path: longest}
        elif written not in (None, response):
            yield path, {path: DROP}


def _every_prompt(mapping: Mapping[str, object]) -> Reads:
    if mapping.get("val_batch_size") is not None:
        yield ("val_batch_size",), {("val_batch_size",): DROP}


def _shares(mapping: Mapping[str, object]) -> Reads:
    path = ("actor_train", "data_args", "domain_interleave_probs")
    written, batch = value_at(mapping, path), whole(mapping.get("rollout_batch_size"), 128)
    shares = {name: number(share) for name, share in written.items()} if isinstance(written, Mapping) else {}
    numbers = [share for share in shares.values() if share is not None and 0 < share <= 1]
    if batch is None or batch < 1 or len(shares) < 2 or len(numbers) != len(shares):
        return
    counts = [int(share * batch) for share in numbers[:-1]]
    counts.append(batch - sum(counts))
    if min(counts) > 0 and not all(isclose(n / batch, x / sum(numbers)) for n, x in zip(counts, numbers, strict=True)):
        yield path, {path: {name: float(count) for name, count in zip(shares, counts, strict=True)}}


def _filters(mapping: Mapping[str, object]) -> Reads:
    size = whole(mapping.get("num_return_sequences_in_group"), RLVRConfig.num_return_sequences_in_group)
    for path, block in blocks(mapping, "rewards"):
        chosen = block.get("query_filter_config")
        source = (*path, "query_filter_config")
        arguments = chosen.get("filter_args") or {} if isinstance(chosen, Mapping) else None
        if not isinstance(chosen, Mapping) or not isinstance(arguments, Mapping) or size is None or size < 1:
            continue
        kind, key = chosen.get("type"), (*source, "filter_args")
        if size == 1 and kind in ("mean_filter", "std_filter"):
            yield source, {source: DROP}
        elif kind == "mean_filter" and arguments.get("threshold_down") is None:
            yield source, {(*key, "threshold_down"): -1.0}
        elif kind == "std_filter":
            threshold = number(arguments.get("std_threshold", -1))
            if threshold:
                yield (*key, "std_threshold"), {(*key, "std_threshold"): threshold * sqrt((size - 1) / size)}


def _math(mapping: Mapping[str, object]) -> Reads:
    for path, block in blocks(mapping, "rewards"):
        if block.get("worker_cls") == MATH:
            yield (*path, "worker_cls"), {(*path, "reward_args", "answer_part"): "conclusion"}


def _detection(mapping: Mapping[str, object]) -> Reads:
    steps = whole(mapping.get("max_steps"))
    for path, block in blocks(mapping, "rewards"):
        if block.get("worker_cls") == DETECTION and steps is not None and steps > 0:
            yield (*path, "worker_cls"), {(*path, "reward_args", "total_steps"): steps}


def _rows(mapping: Mapping[str, object]) -> Reads:
    for block in ("actor_train", "validation"):
        path: Path = (block, "data_args")
        data = value_at(mapping, path)
        if isinstance(data, Mapping) and sees(mapping) and data.get("custom_data_kwargs_func") is None:
            yield (*path, "file_name"), {(*path, name): column for name, column in ROWS.items()}


BOTH: tuple[Reading, ...] = (
    Reading("dual_clip_loss", "true", "ROLL's bound is 1 + 2·pg_clip", _dual_clip),
    Reading("use_kl_loss", "true", "ROLL limits the k3 of each token to ±10", _clamped_kl),
    Reading("actor_train.pg_variant", "topr", "ROLL takes the ratio of each token, not of the whole response", _topr),
)  # fmt: skip
RLVR: tuple[Reading, ...] = (
    Reading("actor_infer.generating_args.max_new_tokens", "another than sequence_length − prompt_length",
            "ROLL overwrites it with sequence_length − prompt_length, and validation's with those of val_", _lengths),
    Reading("val_batch_size", "any", "ROLL's RLVR evaluates every validation prompt", _every_prompt),
    Reading("actor_train.data_args.domain_interleave_probs", "shares that do not come out as ROLL's",
            "prompts of a step; ROLL rounds each share of the batch down, and the last domain has the rest", _shares),
    Reading("rewards.<name>.query_filter_config", "mean_filter, std_filter", "ROLL's deviation is the unbiased one, its lower "
            "mean -1 where none is given, and a group of one always passes", _filters),
    Reading("rewards.<name>.worker_cls", MATH.rpartition(".")[2], "ROLL looks for the answer after </think>, else in the last "
            "paragraph; where there is neither the reward is 0", _math),
    Reading("rewards.<name>.worker_cls", f"{DETECTION.rpartition('.')[2]}, with max_steps", "ROLL's threshold that is dynamic "
            "goes by the run's steps", _detection),
    Reading("actor_train.data_args.file_name", "a model that sees, without custom_data_kwargs_func",
            "ROLL's rows with images are those of Orsta-Data-47k", _rows),
)  # fmt: skip

"""Keys of verl's asynchronous pipeline, and Trinity-RFT's interval, which people bring along: alone, or by verl's path."""

from __future__ import annotations

from roll.compat.roll.rule import KeyRule, Siblings, ignored, lacking, renamed

_ACTOR, _ROLLOUT, _TRAINER = "actor_rollout_ref.", "actor_rollout_ref.rollout.", "trainer."
_SENT, _LOADED = "param_update_preduce_bucket_size_mb", "param_update_consume_bucket_size_mb"


def _count(value: object, block: Siblings) -> bool:
    return type(value) is int and value >= 1


def _interval(value: int, block: Siblings) -> dict[str, object]:
    """The same number of batches is sampled by one version as between two of them is trained."""
    return {"weight_push_interval": value, "async_generation_ratio": value - 1, "async_pipeline_depth": value - 1}


def _of_pipeline(path: str) -> tuple[KeyRule, ...]:
    return (
        KeyRule(path, "alias", "read as async_generation_ratio: 0", lambda v, b: {"async_generation_ratio": 0},
                lambda v, b: v is False, "false", absent=True),
        ignored(path, "every run is an asynchronous flow; async_generation_ratio says how far rollouts run ahead"),
    )  # fmt: skip


def _of_steps_ahead(path: str) -> tuple[KeyRule, ...]:
    return (
        KeyRule(path, "alias", "n: read as async_generation_ratio: n - 1, for 2 is one step off-policy there",
                lambda v, b: {"async_generation_ratio": v - 1}, _count, "1 or more", absent=True),
        lacking(path, "write async_generation_ratio: the batches that rollouts may run ahead"),
    )  # fmt: skip


def _of_buckets(prefix: str) -> tuple[KeyRule, ...]:
    return (
        renamed(f"{prefix}{_SENT}", "model_update_buffer_size_mb"),
        KeyRule(f"{prefix}{_LOADED}", "without effect", "buckets are loaded as they were sent",
                when=lambda v, b: v == b.get(_SENT), values=f"that of {_SENT}", absent=True),
        lacking(f"{prefix}{_LOADED}", "buckets are loaded as they were sent: write model_update_buffer_size_mb"),
    )  # fmt: skip


_DEVICES = (
    "write the devices of each role: actor_train.device_mapping, actor_log_prob.device_mapping (without that role actor_train "
    "computes log-probs), reference.device_mapping, actor_infer.device_mapping; two halves of 8 are list(range(0,4)) and "
    "list(range(4,8))"
)
_TWO_BUFFERS = "weights are always received while engines generate, and taken between two tokens"

VERL = (
    *(rule for prefix in ("", _ACTOR, _TRAINER) for rule in _of_pipeline(f"{prefix}async_pipeline")),
    *(rule for prefix in ("", _TRAINER) for rule in _of_steps_ahead(f"{prefix}generate_ahead_steps")),
    *(lacking(f"{prefix}use_nodes_ratios", _DEVICES) for prefix in ("", _TRAINER)),
    *(ignored(f"{prefix}enable_dual_buffer", _TWO_BUFFERS) for prefix in ("", _ROLLOUT)),
    *(rule for prefix in ("", _ROLLOUT) for rule in _of_buckets(prefix)),
    KeyRule("sync_interval", "alias", "k: read as weight_push_interval k, async_generation_ratio and async_pipeline_depth k - 1",
            _interval, _count, "1 or more", absent=True),
    lacking("sync_interval", "write weight_push_interval and async_generation_ratio"),
)  # fmt: skip

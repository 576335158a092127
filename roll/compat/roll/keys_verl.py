"""Keys of verl's asynchronous pipeline, and Trinity-RFT's interval, which users bring along: alone, or by verl's path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll.compat.roll.rule import KeyRule, Siblings, ignored, lacking

_ACTOR, _ROLLOUT, _TRAINER = "actor_rollout_ref.", "actor_rollout_ref.rollout.", "trainer."
_SENT, _LOADED = "param_update_preduce_bucket_size_mb", "param_update_consume_bucket_size_mb"
_AHEAD = "generate_ahead_steps"
_WRITE_RATIO = "write async_generation_ratio: the batches that rollouts may run ahead"


def _count(value: object, block: Siblings) -> bool:
    return type(value) is int and value >= 1


def _interval(value: int, block: Siblings) -> dict[str, object]:
    """The same number of batches is sampled by one version as between two of them is trained."""
    return {"weight_push_interval": value, "async_generation_ratio": value - 1, "async_pipeline_depth": value - 1}


def _one_ahead(value: object, file: Siblings) -> dict[str, object]:
    """Reads the value where no key gives the distance."""
    trainer = file.get("trainer")
    said = _AHEAD in file or (isinstance(trainer, Mapping) and _AHEAD in trainer)
    return {} if said else {"async_generation_ratio": 1}


def _bucket(value: int, block: Siblings) -> dict[str, object]:
    """Both limits hold for the smaller one."""
    sizes = [block[name] for name in (_SENT, _LOADED) if _count(block.get(name), block)]
    return {"model_update_buffer_size_mb": min(sizes)}


def _split(value: object, file: Siblings) -> tuple[int, int, int] | None:
    """Returns the numbers of devices that train, score by the reference and generate; None if they split no whole devices in
    which generation has its own."""
    nodes, per_node = file.get("num_nodes", 1), file.get("num_gpus_per_node")
    if not (isinstance(value, list) and len(value) == 4 and all(isinstance(each, int | float) for each in value)):
        return None
    if type(nodes) is not int or type(per_node) is not int:
        return None
    shares = [each * nodes * per_node for each in value]
    train, log_prob, reference, generate = (round(each) for each in shares)
    whole = all(abs(each - round(each)) < 1e-6 and round(each) >= 1 for each in shares)
    fits = train == log_prob and max(train, reference) + generate <= nodes * per_node
    return (train, reference, generate) if whole and fits else None


def _devices(value: object, file: Siblings) -> Mapping[str, Any]:
    split = _split(value, file)
    assert split is not None
    train, reference, generate = split
    there = max(train, reference)
    found = {"actor_train.device_mapping": list(range(train)), "actor_infer.device_mapping": list(range(there, there + generate))}
    uses = "reference" in file or any(file.get(name) for name in ("use_kl_loss", "add_token_level_kl"))
    return found | ({"reference.device_mapping": list(range(reference))} if uses else {})


_DEVICES = (
    "its four shares (train, the same for logp, ref_logp, generate) are read where they divide num_nodes x num_gpus_per_node, "
    "which has to be written, into whole devices, and generation has its own; or write the devices of each role: "
    "actor_train.device_mapping, actor_log_prob.device_mapping (without that role actor_train computes log-probs), "
    "reference.device_mapping, actor_infer.device_mapping; two halves of 8 are list(range(0,4)) and list(range(4,8))"
)


_TWO_BUFFERS = (
    "new weights are always received beside those in service, while engines generate: hf_infer has a second set on its device "
    "and swaps, vllm and sglang keep it in the machine's memory and pause to load (weight_update_rolling: true, one engine at a "
    "time)"
)

VERL = (
    *(rule for path in ("async_pipeline", f"{_ACTOR}async_pipeline", f"{_TRAINER}async_pipeline") for rule in (
        KeyRule(path, "alias", "read as async_generation_ratio: 0", lambda v, b: {"async_generation_ratio": 0},
                lambda v, b: v is False, "false", absent=True, outvoted_told=True),
        KeyRule(path, "alias", f"every run is an asynchronous flow; where neither {_AHEAD} nor async_generation_ratio says "
                "how far rollouts run ahead, read as async_generation_ratio: 1", _one_ahead, lambda v, f: v is True, "true",
                absent=True, whole=True, outvoted_told=True),
        lacking(path, _WRITE_RATIO),
    )),
    *(rule for path in (_AHEAD, f"{_TRAINER}{_AHEAD}") for rule in (
        KeyRule(path, "alias", "n: read as async_generation_ratio: n - 1, for 2 is one step off-policy there",
                lambda v, b: {"async_generation_ratio": v - 1}, _count, "1 or more", absent=True, outvoted_told=True),
        lacking(path, _WRITE_RATIO),
    )),
    *(rule for path in ("use_nodes_ratios", f"{_TRAINER}use_nodes_ratios") for rule in (
        KeyRule(path, "alias", "read as device_mapping: generation has the last devices, training and scoring share the first",
                _devices, lambda v, f: _split(v, f) is not None, "four shares of num_nodes x num_gpus_per_node", absent=True,
                whole=True),
        lacking(path, _DEVICES),
    )),
    *(ignored(f"{prefix}enable_dual_buffer", _TWO_BUFFERS) for prefix in ("", _ROLLOUT)),
    *(rule for prefix in ("", _ROLLOUT) for name in (_SENT, _LOADED) for rule in (
        KeyRule(f"{prefix}{name}", "alias", "read as model_update_buffer_size_mb; buckets are loaded as they were sent, so the "
                f"smaller of {_SENT} and {_LOADED}", _bucket, _count, "1 or more", absent=True, outvoted_told=True),
        lacking(f"{prefix}{name}", "write model_update_buffer_size_mb: 1 or more"),
    )),
    KeyRule("sync_interval", "alias", "k: read as weight_push_interval k, async_generation_ratio and async_pipeline_depth k - 1",
            _interval, _count, "1 or more", absent=True, outvoted_told=True),
    lacking("sync_interval", "write weight_push_interval and async_generation_ratio"),
)  # fmt: skip

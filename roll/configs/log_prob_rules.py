"""Rules of `actor_log_prob`: old log-probs that a copy of the policy recomputes."""

from __future__ import annotations

from collections.abc import Iterator

from roll.configs.derived import old_logprobs_recomputed, scores_ahead
from roll.configs.ppo import PPOConfig
from roll.configs.problems import Problem
from roll.configs.worker import ActorLogProbConfig

KEY = "actor_log_prob"


def log_prob_problems(config: PPOConfig) -> Iterator[Problem]:
    role = config.actor_log_prob
    if role is None or config.mode in ("explore", "bench"):
        return
    recomputed, reason = old_logprobs_recomputed(config)
    if not recomputed:
        message = f"no log-probs are recomputed ({reason})"
        yield Problem(KEY, "given", message, "remove it, or old_logprobs: recompute")
    if role.lag == 1 and not scores_ahead(config):
        ratio = config.async_generation_ratio
        message = f"at async_generation_ratio {ratio:g} no batch is complete while a step trains: older log-probs win no time"
        yield Problem(f"{KEY}.lag", 1, message, "0 or auto, or async_generation_ratio: 1")
    yield from _same_model(config, role)
    yield from _own_devices(config, role)


def _same_model(config: PPOConfig, role: ActorLogProbConfig) -> Iterator[Problem]:
    trained, key = config.actor_train.model_args, f"{KEY}.model_args"
    named, own = config.model_folder(config.actor_train), config.model_folder(role)
    if named and own != named:
        yield Problem(f"{key}.model_name_or_path", own, "is not the model that actor_train trains", named)
    if role.model_args.dtype != trained.dtype:
        message = f"actor_train computes in {trained.dtype}: ratios would measure the difference of the types"
        yield Problem(f"{key}.dtype", role.model_args.dtype, message, trained.dtype)


def _own_devices(config: PPOConfig, role: ActorLogProbConfig) -> Iterator[Problem]:
    roles = config.configured_roles()
    for name in ("actor_train", "actor_infer"):
        try:
            shared = name in roles and not set(roles[name].devices).isdisjoint(role.devices)
        except ValueError:  # a device_mapping that cannot be read: reported as such
            return
        if shared:
            fix = "devices of its own, or remove the role: actor_train computes the log-probs"
            yield Problem(f"{KEY}.device_mapping", role.device_mapping, f"shares devices with {name}", fix)

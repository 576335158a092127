"""What means something else here than in ROLL, on purpose, and is not read as ROLL means it (readings.py does that): told for a
file of ROLL that it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from roll.compat.roll.readings import MATH
from roll.compat.roll.translation import value_at
from roll.configs.agentic import AgenticConfig
from roll.configs.correction import DECOUPLED_BOUND
from roll.configs.derived import old_logprobs_recomputed, optimizer_batch_size
from roll.configs.estimators import STEP_ESTIMATORS
from roll.configs.losses import POLICY_LOSSES, anchor_of
from roll.configs.ppo import PPOConfig
from roll.configs.report import Note
from roll.configs.rlvr import RLVRConfig

Written = Mapping[str, Any]
"""The file, before anything was read as something else."""
_GAMES = ("frozen_lake", "sokoban")
_PG_WORKERS = ("roll.pipeline.rlvr.actor_pg_worker.", "roll.pipeline.agentic.agentic_actor_pg_worker.")


@dataclass(frozen=True, slots=True)
class Difference:
    key: str
    """For the page; `<name>` is a name of the user's own."""
    when: str
    """The files that it is about, as text for the page."""
    note: str
    """What it means in ROLL, and what here."""
    keys: Callable[[PPOConfig, Written], Iterable[str]]
    """The keys of a file that it is about; none if it is not about the file."""


def differences_of(config: PPOConfig, written: Written) -> list[Note]:
    """A note for each key of the file that means something else than in ROLL, with the value that counts here; of a key that is
    not here the value that was written."""
    return [Note(key, _value(config, written, key), each.note) for each in DIFFERENCES for key in each.keys(config, written)]


def _value(config: object, written: Written, key: str) -> object:
    path = tuple(key.split("."))
    for name in path:
        config = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
    return value_at(written, path) if config is None else config


def _if(key: str, holds: Callable[[Any], bool]) -> Callable[[PPOConfig, Written], Iterator[str]]:
    """The key, for configurations that the condition holds for."""

    def keys(config: PPOConfig, written: Written) -> Iterator[str]:
        if holds(config):
            yield key

    return keys


def _agentic(config: PPOConfig) -> bool:
    return isinstance(config, AgenticConfig)


def _environments(config: PPOConfig, key: str, holds: Callable[[Any], bool]) -> list[str]:
    envs = config.custom_envs if isinstance(config, AgenticConfig) else {}
    return [f"custom_envs.{name}.{key}" for name, env in envs.items() if holds(env)]


def _by_turn(env: Any) -> bool:
    return "StepEnvManager" in env.env_manager_cls


def _takes_ratio(config: PPOConfig) -> bool:
    loss = POLICY_LOSSES.get(config.actor_train.pg_variant)
    return loss is None or loss.takes_ratio or not loss.uncorrected


def _recomputed_there(config: PPOConfig) -> bool:
    """ROLL's rule: base_config.py, `set_old_logprobs_status` and what calls it."""
    if config.old_logprobs == "bypass":
        return False
    forced = config.enable_old_logprobs_recompute or config.adv_estimator in ("step_reinforce", "gigpo")
    return forced or config.init_kl_coef > 0 or _steps(config) > 1


def _steps(config: PPOConfig) -> int:
    """Optimiser steps of a pipeline step; 0 if the devices cannot be read."""
    try:
        batch = optimizer_batch_size(config.actor_train)
        return config.rollouts_per_step // batch if batch else 0
    except (ValueError, ZeroDivisionError):
        return 0


def _anchor(recomputed_there: bool) -> Callable[[PPOConfig], bool]:
    def holds(config: PPOConfig) -> bool:
        here, _ = old_logprobs_recomputed(config)
        return _takes_ratio(config) and not here and _recomputed_there(config) is recomputed_there

    return holds


def _weighted(config: PPOConfig) -> bool:
    recomputed, _ = old_logprobs_recomputed(config)
    return (
        recomputed and anchor_of(config.actor_train.pg_variant) == "step" and not config.train_infer_correction.is_weight.enabled
    )


def _filtered(config: PPOConfig) -> bool:
    return any(rule.enabled for rule in config.train_infer_correction.filters)


def _adapts(config: PPOConfig) -> bool:
    several = not _agentic(config) and len(config.domain_weights) > 1
    return (
        config.add_token_level_kl and config.target_kl is not None and (several or config.rollouts_per_step > config.kl_horizon)
    )


def _warms_up(config: PPOConfig) -> bool:
    training = config.actor_train.training_args
    return training.warmup_steps > 0 or training.warmup_ratio > 0


def _not_read_there(config: PPOConfig, written: Written) -> Iterator[str]:
    variant, worker = (value_at(written, ("actor_train", key)) for key in ("pg_variant", "worker_cls"))
    if variant not in (None, "ppo") and not str(worker).startswith(_PG_WORKERS):
        yield "actor_train.pg_variant"


def _cut_by_game(config: PPOConfig, written: Written) -> list[str]:
    def cut(env: Any) -> bool:
        most = env.env_config.get("max_steps")
        return env.env_type == "frozen_lake" and isinstance(most, int) and most < env.max_steps

    return _environments(config, "env_config.max_steps", cut)


def _own_reward(config: PPOConfig, written: Written) -> list[str]:
    by_turn = _environments(config, "env_manager_cls", _by_turn)
    return [] if config.adv_estimator in STEP_ESTIMATORS else by_turn


DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "prompt_length",
        "RLVR",
        "ROLL also leaves out prompts of 5 tokens or fewer, in training and in validation; here only empty ones",
        lambda config, written: ["prompt_length"] if isinstance(config, RLVRConfig) and "prompt_length" in written else [],
    ),
    Difference(
        "old_logprobs",
        "ROLL recomputes log-probs",
        "ROLL takes ratios, and the penalty of add_token_level_kl, to log-probs that it recomputes at the start of a step, "
        "and leaves what happened since the sampling uncorrected; here they are taken to the policy that sampled. At "
        "async_generation_ratio 0 the two differ by rounding alone. old_logprobs: recompute is ROLL's anchor, with the loss "
        "weighted for the rest",
        _if("old_logprobs", _anchor(True)),
    ),
    Difference(
        "old_logprobs",
        "ROLL does not recompute log-probs",
        "ROLL takes ratios to the weights that are trained themselves: in the first pass all are 1, nothing is "
        "clipped, and samples of older versions are not corrected for; here they are taken to the policy that sampled",
        _if("old_logprobs", _anchor(False)),
    ),
    Difference(
        "old_logprobs",
        "log-probs are recomputed, without is_weight",
        f"the loss of each token is weighted for the distance to the sampler, by at most {DECOUPLED_BOUND:g}; "
        "ROLL's is not, unless is_weight says so",
        _if("old_logprobs", _weighted),
    ),
    Difference(
        "train_infer_correction.filters",
        "a filter acts",
        "tokens that are left out still count in the loss's normaliser; ROLL divides by the number of the others, but"
        " with loss_agg_mode: token-mean it keeps their loss",
        _if("train_infer_correction.filters", _filtered),
    ),
    Difference(
        "loss_agg_mode",
        "seq-mean-token-sum-norm",
        "the sum over tokens is divided by the longest response and by the number of sequences; ROLL divides by "
        "sequence_length alone, so that its loss, and what max_grad_norm cuts, grow with the batch",
        _if("loss_agg_mode", lambda c: c.loss_agg_mode == "seq-mean-token-sum-norm"),
    ),
    Difference(
        "actor_infer.generating_args.temperature",
        "not 1",
        "log-probs, ratios, KL and entropy are those of the distribution that is sampled, softmax(logits / "
        "temperature); ROLL trains softmax(logits)",
        _if("actor_infer.generating_args.temperature", lambda c: c.actor_infer.generating_args.temperature != 1),
    ),
    Difference(
        "actor_train.pg_variant",
        "without ROLL's PG worker",
        "ROLL reads it only with worker_cls …ActorPGWorker (agentic: …agentic_actor_pg_worker.ActorWorker), and "
        "trains ppo with any other; here it counts",
        _not_read_there,
    ),
    Difference(
        "importance_sampling",
        "seq, with add_token_level_kl",
        "each token's gradient is weighted by its own advantage (GSPO-token); ROLL's by the mean over the response",
        _if("importance_sampling", lambda c: c.add_token_level_kl and c.actor_train.pg_variant == "gspo"),
    ),
    Difference(
        "reward_clip",
        "with add_token_level_kl",
        "the reward and each token's penalty are clipped one by one; ROLL clips their sum on the last token",
        _if("reward_clip", lambda c: c.reward_clip is not None and c.add_token_level_kl),
    ),
    Difference(
        "target_kl",
        "several domains, or a batch of more than kl_horizon samples",
        "one coefficient is adapted once a step, by at most a fifth; ROLL's is adapted after each domain, and each "
        "domain has the one that the domain before left",
        _if("target_kl", _adapts),
    ),
    Difference(
        "whiten_rewards",
        "true",
        "token rewards are scaled and not shifted; ROLL shifts them, which pays or charges for every further token",
        _if("whiten_rewards", lambda c: c.whiten_rewards),
    ),
    Difference(
        "adv_estimator",
        "gae",
        "the values of tokens outside the response take no part; ROLL's advantages of a response's last tokens take "
        "in the critic's values of padding",
        _if("adv_estimator", lambda c: c.adv_estimator == "gae"),
    ),
    Difference(
        "gamma",
        "agentic, not 1",
        "discounts by turns; of ROLL's estimators agentic_reinforce does, and the others by tokens, those of "
        "observations included",
        _if("gamma", lambda c: _agentic(c) and c.gamma != 1),
    ),
    Difference(
        "adv_estimator",
        "gigpo",
        "an episode counts once, however many turns it has, and equal states of different tasks are different states;"
        " ROLL compares turns, pools equal states of all tasks, and normalises those by `method` alone",
        _if("adv_estimator", lambda c: _agentic(c) and c.adv_estimator == "gigpo"),
    ),
    Difference(
        "custom_envs.<name>.env_manager_cls",
        "StepEnvManager, without a step estimator",
        "a turn has the score of its whole episode, and an episode is compared once; in ROLL a turn has its own "
        "reward, and turns are compared",
        _own_reward,
    ),
    Difference(
        "custom_envs.<name>.history_length",
        "StepEnvManager, with {history}",
        "{history} shows so many turns before this one; ROLL's shows one less, of those only the turns without a readable "
        "action, and none where the key is left out",
        lambda c, w: _environments(c, "history_length", lambda env: _by_turn(env) and "{history}" in env.agent_template),
    ),
    Difference(
        "batch_adjust_mode",
        "StepEnvManager",
        "every sample counts once; ROLL copies random samples, or leaves some out, until the batch divides evenly",
        lambda c, w: ["batch_adjust_mode"] * bool(_environments(c, "", _by_turn)),
    ),
    Difference(
        "actor_train.training_args.warmup_steps",
        "a warm-up",
        "the first optimiser step has one share of the peak; ROLL's first step has a learning rate of 0, and the peak"
        " comes a step later",
        _if("actor_train.training_args.warmup_steps", _warms_up),
    ),
    Difference(
        "async_generation_ratio",
        "above 0",
        "a group that would be trained later than allowed is awaited; ROLL cancels it, which leaves out the slow ones"
        " (staleness_policy: drop)",
        _if("async_generation_ratio", lambda c: ceil(c.async_generation_ratio) > 0 and c.staleness_policy == "wait"),
    ),
    Difference(
        "rewards.<name>.worker_cls",
        MATH.rpartition(".")[2],
        "compares by math-verify, as ROLL does, but takes back what a strict reader would not accept, "
        "such as a remark or two values in the box",
        lambda c, w: (
            [f"rewards.{name}.worker_cls" for name, reward in c.rewards.items() if reward.worker_cls == MATH]
            if isinstance(c, RLVRConfig)
            else []
        ),
    ),
    Difference(
        "custom_envs.<name>.env_config.action_pattern",
        ", ".join(_GAMES),
        "of several answers in one text the last counts, as an agent may correct itself; in ROLL the first",
        lambda c, w: _environments(c, "env_config.action_pattern", lambda env: env.env_type in _GAMES),
    ),
    Difference(
        "custom_envs.<name>.env_type",
        ", ".join(_GAMES),
        "the same game, with its rules told in other words, in the system prompt and as {suffix}, and its boards drawn by "
        "another generator (Sokoban: search_depth is read otherwise, min_pushes leaves out the easiest rooms)",
        lambda c, w: _environments(c, "env_type", lambda env: env.env_type in _GAMES),
    ),
    Difference(
        "custom_envs.<name>.env_config.max_steps",
        "frozen_lake, less than the tag's max_steps",
        "ends the episode; in ROLL the tag's max_steps alone does",
        _cut_by_game,
    ),
    Difference(
        "val_env_manager",
        "given",
        "every evaluation plays the same episodes, and a run with the same seed the same; ROLL plays others each time",
        _if("val_env_manager", lambda c: _agentic(c) and c.val_env_manager is not None),
    ),
)

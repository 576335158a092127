"""Deliberate differences from ROLL's meaning that are not read as ROLL means them (readings.py does that): told for each file of
ROLL that they concern. Here those between rewards and the loss; report.py has the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from roll.compat.roll.pipelines import STUDENT
from roll.compat.roll.rule import value_at
from roll.core.configs.derived import keeps_sampling_mask, old_logprobs_recomputed, optimizer_steps
from roll.core.configs.losses import DECOUPLED_BOUND, POLICY_LOSSES, anchor_of
from roll.core.configs.ppo import PPOConfig

Written = Mapping[str, Any]
"""The file, before anything was read as something else."""


@dataclass(frozen=True, slots=True)
class Difference:
    key: str
    """For the page; `<name>` is a name of the user's own."""
    when: str
    """The files concerned, as text for the page."""
    note: str
    """Its meaning in ROLL, and here."""
    keys: Callable[[PPOConfig, Written], Iterable[str]]
    """The keys of a file that are concerned; none if the file is not."""


def if_(key: str, holds: Callable[[Any], bool]) -> Callable[[PPOConfig, Written], list[str]]:
    return lambda config, written: [key] if holds(config) else []


def where(key: str, when: str, note: str, holds: Callable[[Any], bool]) -> Difference:
    """Makes the difference of one key, for configurations that meet the condition."""
    return Difference(key, when, note, if_(key, holds))


def agentic(config: PPOConfig) -> bool:
    return config.multi_turn


_PG_WORKERS = ("roll.pipeline.rlvr.actor_pg_worker.", "roll.pipeline.agentic.agentic_actor_pg_worker.")


def _takes_ratio(config: PPOConfig) -> bool:
    loss = POLICY_LOSSES.get(config.actor_train.pg_variant)
    return loss is None or loss.takes_ratio or not loss.uncorrected


def _recomputed_there(config: PPOConfig) -> bool:
    """Follows ROLL's rule: base_config.py, `set_old_logprobs_status` and its caller."""
    if config.old_logprobs == "bypass":
        return False
    forced = config.old_logprobs == "recompute" or config.adv_estimator in ("step_reinforce", "gigpo")
    return forced or config.init_kl_coef > 0 or _steps(config) > 1


def _steps(config: PPOConfig) -> int:
    """Returns optimiser steps of a pipeline step; 0 if the devices cannot be read."""
    try:
        return optimizer_steps(config, config.actor_train)
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
    several = not agentic(config) and len(config.domain_weights) > 1
    return (
        config.add_token_level_kl and config.target_kl is not None and (several or config.rollouts_per_step > config.kl_horizon)
    )


def _warms_up(config: PPOConfig) -> bool:
    training = config.actor_train.training_args
    return training.warmup_steps > 0 or training.warmup_ratio > 0


def _divides_with_deepspeed(config: PPOConfig) -> bool:
    role = config.actor_train
    return role.model_args.ulysses_size > 1 and role.strategy_args.strategy_name.startswith("deepspeed")


def _not_read_there(config: PPOConfig, written: Written) -> Iterator[str]:
    variant, worker = (value_at(written, ("actor_train", key)) for key in ("pg_variant", "worker_cls"))
    if variant not in (None, "ppo") and not str(worker).startswith(_PG_WORKERS):
        yield "actor_train.pg_variant"


_OLD_CORRECTIONS = (
    *(f"train_infer_{kind}{infix}_mask" for infix in ("", "_seq") for kind in ("ratio", "diff")),
    "use_rollout_importance_sampling_ratio",
)
"""Flat keys of older releases, read as parts of train_infer_correction."""


def _switched_on(key: str) -> Callable[[PPOConfig, Written], list[str]]:
    return lambda config, written: [key] if written.get(key) else []


def _normalised(config: PPOConfig) -> dict[str, object]:
    names = ("norm_mean_type", "norm_std_type")
    return {name: value for name in names if (value := getattr(config, name, None)) is not None}


def _old_norm(config: PPOConfig, written: Written) -> list[str]:
    normalised, own = _normalised(config), {name for name, value in written.items() if value is not None}
    return ["reward_norm"] if "reward_norm" in own and normalised and not normalised.keys() & own else []


def _running(config: PPOConfig, written: Written) -> list[str]:
    return [name for name, value in _normalised(config).items() if value == "running" and len(config.domain_weights) > 1]


def _leaves_samples_out(config: PPOConfig) -> bool:
    return any(getattr(config, name, False) for name in ("max_len_mask", "difficulty_mask", "error_max_len_clip"))


def _penalises_left_out(config: PPOConfig) -> bool:
    by_token = config.loss_agg_mode == "token-mean"
    return by_token and config.actor_train.pg_variant == "kimi15" and _leaves_samples_out(config)


LOSS: tuple[Difference, ...] = (
    Difference("reward_norm", "given", "read as norm_mean_type and norm_std_type, as older releases of ROLL read it; ROLL no "
               "longer does, and trains on raw rewards unless those keys are given", _old_norm),
    Difference("norm_mean_type", "norm_mean_type or norm_std_type running, several domains", "each domain has running moments "
               "of its own; ROLL has one for all domains, which it updates domain by domain", _running),
    where("error_max_len_clip", "true", "a long response stays if it earned the full reward; ROLL also leaves out every "
          "sample, long or short, whose score is other than 0 and 1", lambda c: getattr(c, "error_max_len_clip", False)),
    *(Difference(key, "true", "corrects, as in older releases of ROLL; ROLL no longer reads it, only train_infer_correction",
                 _switched_on(key)) for key in _OLD_CORRECTIONS),
    Difference("actor_infer.generating_args.top_p", "top_p or top_k, hf_infer or vllm", "log-probs are those of the cut "
               "distribution that is sampled; ROLL's are of the whole one, as here with keep_sampling_mask: false",
               if_("actor_infer.generating_args", keeps_sampling_mask)),
    where("old_logprobs", "ROLL recomputes log-probs", "ROLL takes ratios, and the penalty of add_token_level_kl, to log-probs "
          "that it recomputes at the start of a step, and leaves what happened since the sampling uncorrected; here they are "
          "taken to the policy that sampled. At async_generation_ratio 0 the two differ by rounding alone. old_logprobs: "
          "recompute is ROLL's anchor, with the loss weighted for the rest", _anchor(True)),
    where("old_logprobs", "ROLL does not recompute log-probs", "ROLL takes ratios to the weights that are trained themselves: "
          "in the first pass all are 1, nothing is clipped, and samples of older versions are not corrected for; here they are "
          "taken to the policy that sampled", _anchor(False)),
    where("old_logprobs", "log-probs are recomputed, without is_weight",
          f"the loss of each token is weighted for the distance to the sampler, by at most {DECOUPLED_BOUND:g}; "
          "ROLL's is not, unless is_weight says so", _weighted),
    where("train_infer_correction.filters", "a filter acts", "tokens that are left out still count in the loss's normaliser; "
          "ROLL divides by the number of the others, but with loss_agg_mode: token-mean it keeps their loss", _filtered),
    where("use_kl_loss", "a filter acts", "the penalty holds every trained token; ROLL's only the tokens that the filter keeps",
          lambda c: c.use_kl_loss and _filtered(c)),
    where("entropy_loss_coef", "agentic, a filter acts", "the bonus is of every trained token; ROLL's of only the tokens that "
          "the filter keeps", lambda c: agentic(c) and c.entropy_loss_coef > 0 and _filtered(c)),
    where("entropy_loss_coef", "max_len_mask, difficulty_mask, error_max_len_clip", "the bonus is of trained samples; ROLL's "
          "also of those that are left out", lambda c: c.entropy_loss_coef > 0 and _leaves_samples_out(c)),
    where("actor_train.pg_variant", "kimi15 with token-mean and max_len_mask, difficulty_mask or error_max_len_clip",
          "samples that are left out take no part; in ROLL the penalty on the squared log-ratio acts on them, too",
          _penalises_left_out),
    where("loss_agg_mode", "seq-mean-token-sum-norm", "the sum over tokens is divided by the longest response and by the "
          "number of sequences; ROLL divides by sequence_length alone, so that its loss, and what max_grad_norm cuts, grow "
          "with the batch", lambda c: c.loss_agg_mode == "seq-mean-token-sum-norm"),
    where("actor_infer.generating_args.temperature", "not 1", "log-probs, ratios, KL and entropy are those of the distribution "
          "that is sampled, softmax(logits / temperature); ROLL trains softmax(logits)",
          lambda c: c.actor_infer.generating_args.temperature != 1),
    Difference("actor_train.pg_variant", "without ROLL's PG worker", "ROLL reads it only with worker_cls …ActorPGWorker "
               "(agentic: …agentic_actor_pg_worker.ActorWorker), and trains ppo with any other; here it counts",
               _not_read_there),
    where("importance_sampling", "seq, with add_token_level_kl", "each token's gradient is weighted by its own advantage "
          "(GSPO-token); ROLL's by the mean over the response",
          lambda c: c.add_token_level_kl and c.actor_train.pg_variant == "gspo"),
    where("reward_clip", "with add_token_level_kl", "the reward and each token's penalty are clipped one by one; ROLL clips "
          "their sum on the last token", lambda c: c.reward_clip is not None and c.add_token_level_kl),
    where("target_kl", "several domains, or a batch of more than kl_horizon samples", "one coefficient is adapted once a step, "
          "by at most a fifth; ROLL's is adapted after each domain, and each domain has the one that the domain before left",
          _adapts),
    where("whiten_rewards", "true", "token rewards are scaled and not shifted; ROLL shifts them, which pays or charges for "
          "every further token", lambda c: c.whiten_rewards),
    Difference("logits_topk", "distillation of texts", "the teacher's most probable tokens have the probabilities "
               "of the whole vocabulary, and all others are one token more; in ROLL policy and teacher are each made to sum to 1 "
               "over the most probable ones alone, so that what the policy says of others costs nothing",
               lambda c, w: ["distillation.logits_topk"] if any(key in w for key in STUDENT) else []),
    Difference("sequence_length", "distillation of texts", "longer rows are left out, and counted; ROLL cuts them",
               lambda c, w: ["sequence_length"] if any(key in w for key in STUDENT) else []),
    where("adv_estimator", "gae", "the values of tokens outside the response take no part; ROLL's advantages of a response's "
          "last tokens take in the critic's values of padding. The critic's loss is a mean over all trained tokens; ROLL's a "
          "mean over responses, of each one's mean over its tokens", lambda c: c.adv_estimator == "gae"),
    where("gamma", "agentic, not 1", "discounts by turns; of ROLL's estimators agentic_reinforce does, and the others by "
          "tokens, those of observations included", lambda c: agentic(c) and c.gamma != 1),
    where("adv_estimator", "gigpo", "an episode counts once, however many turns it has, and equal states of different tasks "
          "are different states; ROLL compares turns, pools equal states of all tasks, and normalises those by `method` alone",
          lambda c: agentic(c) and c.adv_estimator == "gigpo"),
    where("actor_train.training_args.warmup_steps", "a warm-up", "the first optimiser step has one share of the peak; ROLL's "
          "first step has a learning rate of 0, and the peak comes a step later", _warms_up),
    where("actor_train.model_args.ulysses_size", "deepspeed_train", "so many ranks share a sample, and the optimiser batch is "
          "smaller than without it; ROLL reads the key with fsdp2_train alone", _divides_with_deepspeed),
)  # fmt: skip

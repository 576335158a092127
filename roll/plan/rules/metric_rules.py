"""Rules of keys that name metrics: no key may wait for one that the run will not have."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from glob import escape

from roll.core.configs.derived import keeps_sampling_mask, old_logprobs_recomputed, replays_routing
from roll.core.configs.losses import POLICY_LOSSES, anchor_of
from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import MISSING_VALUE, Problem, did_you_mean
from roll.core.configs.watching import AlarmConfig
from roll.core.record.estimates import ACCURACY, ERRORS, ROLLOUTS, SCORE, numbers_of_attempts
from roll.core.record.metric_names import OF_EVERY_RUN, OF_PAIRS, OF_SOME_RUNS

OF_VALIDATIONS = "a validation set"


def metric_names(config: PPOConfig) -> list[str]:
    """Returns patterns of the names of all metrics of the run."""
    return [*OF_EVERY_RUN, *_of_this(config)]


def of_validations(config: PPOConfig) -> Iterator[str]:
    """Yields patterns of the names of the metrics of its validations."""
    if config.from_rows:
        figures = OF_PAIRS if config.pair_loss is not None else OF_PAIRS[:1]
        for position, name in enumerate(config.validations):
            yield from (f"{f'eval/{escape(name)}' if position else 'val'}/{figure}" for figure in figures)
            yield from () if position else (SCORE, ROLLOUTS, "time/validation_s", *([ACCURACY] if figures[1:] else []))
        return
    tags = [escape(tag) for tag in config.tag_to_domain]
    domains = [escape(domain) for domain in dict.fromkeys(config.tag_to_domain.values())]
    if config.validations:
        yield from (ACCURACY, SCORE, ERRORS, ROLLOUTS, "time/validation_s", *(f"val_correct/{tag}/mean" for tag in tags))
    for position, (name, n) in enumerate(config.validation_attempts.items()):
        of_set = f"eval/{escape(name)}"
        if config.multi_turn:
            yield f"{of_set if position else 'val'}/env/*"
        for part in ("all", *(f"domain/{each}" for each in domains), *(f"tag/{each}" for each in tags)):
            for figure in (f"avg@{n}", *(f"pass@{k}" for k in numbers_of_attempts(n))):
                yield from (f"{of_set}/{part}/{figure}{end}" for end in ("", "/low", "/high"))


def alarm_problems(config: PPOConfig) -> Iterator[Problem]:
    names = metric_names(config)
    for index, alarm in enumerate(config.alarms):
        yield from _range(alarm, f"alarms[{index}]")
        if not among(alarm.metric, names) and not _of_own_code(alarm.metric, config):
            yield unknown(alarm.metric, f"alarms[{index}].metric", names)


def _range(alarm: AlarmConfig, key: str) -> Iterator[Problem]:
    above, below = alarm.above, alarm.below
    if above is None and below is None:
        yield Problem(key, MISSING_VALUE, f"{alarm.metric} has no range to leave", "above: <number>, or below: <number>")
    elif above is not None and below is not None and below >= above:
        message = f"every value is below {below:g} or above {above:g}: in range is what lies from below to above"
        yield Problem(f"{key}.below", below, message, f"less than {above:g}")


def _of_this(config: PPOConfig) -> Iterator[str]:
    correction = config.train_infer_correction
    decoupled = not config.from_rows and old_logprobs_recomputed(config)[0] and anchor_of(config.pg_variant) == "step"
    corrects = correction.is_weight.enabled or any(each.enabled for each in correction.filters)
    has = {
        "pairs of answers": config.pair_loss is not None,
        "use_kl_loss or add_token_level_kl": config.uses_reference,
        "add_token_level_kl": config.add_token_level_kl,
        "teachers": bool(config.teachers),
        "a divergence from teachers": bool(config.teachers) and config.distillation.beta is not None,
        "an adv_estimator that compares the rollouts of a group": config.compares_in_groups,
        "adv_estimator gae": config.uses_critic,
        "value_clip": config.uses_critic and config.value_clip is not None,
        "train_infer_correction or recomputed log-probs": decoupled or corrects or correction.veto_threshold is not None,
        "actor_log_prob": config.actor_log_prob is not None,
        "keep_sampling_mask with top_p or top_k": keeps_sampling_mask(config),
        "router_replay": replays_routing(config),
        "an agentic run": config.multi_turn,
        "mode train": not config.has_both_sides,
    }
    for need, patterns in OF_SOME_RUNS.items():
        if need != OF_VALIDATIONS and has[need]:
            yield from patterns
    yield from of_validations(config)
    own = POLICY_LOSSES.get(config.pg_variant)
    if own is not None:
        yield from (f"actor/{name}" for name in own.metrics)
    elif not config.from_rows:
        yield "actor/*"
    domains = [escape(domain) for domain in dict.fromkeys(config.tag_to_domain.values())]
    yield from (f"rewards/{domain}/*" for domain in domains)
    yield from (f"staleness/{domain}/mean" for domain in domains if len(domains) > 1)


def _of_own_code(name: str, config: PPOConfig) -> bool:
    """True if the run's own code may add it: it has no beginning of the run's metrics, and is not one of them misspelt."""
    known = [*OF_EVERY_RUN, *(pattern for patterns in OF_SOME_RUNS.values() for pattern in patterns)]
    begins = {pattern.partition("/")[0] for pattern in known}
    added = config.flow.callbacks or config.flow.stages
    return bool(added) and "*" not in name and name.partition("/")[0] not in begins and not did_you_mean(name, known, cutoff=0.85)


def among(name: str, patterns: list[str]) -> bool:
    return "*" not in name and any(fnmatchcase(name, pattern) for pattern in patterns)


def unknown(name: str, key: str, known: list[str]) -> Problem:
    for need, patterns in OF_SOME_RUNS.items():
        if among(name, [*patterns]) and not (need == OF_VALIDATIONS and ERRORS in known):
            return Problem(key, name, f"no step of this run will have it: it needs {need}", f"{need}, or another metric")
    if losses := [loss for loss, entry in POLICY_LOSSES.items() if name.removeprefix("actor/") in entry.metrics]:
        return Problem(
            key,
            name,
            "the loss of this run does not have it",
            f"actor_train.pg_variant: {' or '.join(losses)}, or another metric",
        )
    fix = did_you_mean(name, [each for each in known if "*" not in each], "a name from metrics.jsonl of a run like this one")
    return Problem(key, name, "no step of this run will have it", fix)

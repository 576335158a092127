"""Rules of RLVR's own keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from posixpath import normpath

from roll.core.configs.arguments import DataArguments
from roll.core.configs.base import BaseConfig
from roll.core.configs.dotted_path import DOTTED_PATH
from roll.core.configs.engines import ENGINES, engine_of
from roll.core.configs.ppo import set_key
from roll.core.configs.problems import MISSING_VALUE, Problem, did_you_mean
from roll.core.configs.rlvr import RLVRConfig
from roll.core.configs.worker import RewardConfig
from roll.plan.rules.loss_rules import unusable_estimator
from roll.plan.rules.set_names import set_names

WORKER = "roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker"
"""One that is there."""


def rlvr_problems(config: RLVRConfig) -> Iterator[Problem]:
    for rule in (_lengths, _rollout, _advantages, _data, _twice, _pass_rates, _epochs, _domains):
        yield from rule(config)
    yield from set_names(config.validation_sets)


def _twice(config: RLVRConfig) -> Iterator[Problem]:
    """Rows of a validation that count twice make its interval too narrow."""
    for name, each in config.validations.items():
        if (twice := each.data_args.named_twice) is not None:
            message, once = (
                f"names {twice} twice: its rows would count as if they were others",
                f"name each once: [{', '.join(dict.fromkeys(map(normpath, each.data_args.files)))}]",
            )
            yield Problem(f"{set_key(name)}.data_args.file_name", each.data_args.file_name, message, once)


def _lengths(config: RLVRConfig) -> Iterator[Problem]:
    try:
        response_length = config.lengths().response
    except ValueError as error:
        key = "response_length" if config.sequence_length is None else "sequence_length"
        value = MISSING_VALUE if config.sequence_length is None else config.sequence_length
        yield Problem(key, value, str(error), _length_fix(config))
        return
    for domain, reward in config.rewards.items():
        if (buffer := reward.shaping.overlong_buffer) > response_length:
            message = f"is longer than the longest response, {response_length}: every response would lose some, an empty one, too"
            yield Problem(f"rewards.{domain}.shaping.overlong_buffer", buffer, message, f"at most {response_length}")
    sampling = {"actor_infer": config.actor_infer.generating_args}
    sampling |= {set_key(name): args for name, args in config.validation_sampling.items()}
    for name, args in sampling.items():
        longest = args.max_new_tokens
        if longest is not None and longest > response_length:
            yield Problem(
                f"{name}.generating_args.max_new_tokens",
                longest,
                f"{longest} > response_length {response_length}",
                f"at most {response_length}, or remove it",
            )


def _length_fix(config: RLVRConfig) -> str:
    prompt, response, sequence = config.prompt_length, config.response_length, config.sequence_length
    if sequence is None:
        return "e.g. 1024, or sequence_length above prompt_length"
    shorter = f", or prompt_length: {room}" if (room := sequence - (response or 1)) > 0 else ""
    return f"at least {prompt + (response or 1)}{shorter}"


def _rollout(config: RLVRConfig) -> Iterator[Problem]:
    if config.rollout is None:
        return
    if not DOTTED_PATH.fullmatch(config.rollout.function):
        yield Problem("rollout.function", config.rollout.function, "is not a dotted path", "my_package.my_module.my_rollout")
    if (template := config.actor_train.data_args.template) != "native":
        message = "the messages of rollouts are put into words by the model's chat template"
        yield Problem("actor_train.data_args.template", template, message, "native")
    if config.actor_train.data_args.continue_final_message:
        message = "your rollout asks with the messages that it makes itself"
        yield Problem("actor_train.data_args.continue_final_message", True, message, "remove it")
    if config.uses_critic or config.uses_greedy_baseline:
        message = "takes a rollout as one response, and yours may become several"
        yield Problem("adv_estimator", config.adv_estimator, message, "grpo, or another without a critic and a greedy response")
    if config.is_num_return_sequences_expand:
        message = "has no effect: each rollout of yours asks for itself"
        yield Problem("is_num_return_sequences_expand", True, message, "remove it")


def _advantages(config: RLVRConfig) -> Iterator[Problem]:
    size = config.num_return_sequences_in_group
    alone = "compares the responses of a group, but num_return_sequences_in_group is 1"
    larger = "num_return_sequences_in_group: 2 or more"
    yield from unusable_estimator(config.adv_estimator, config.refused_estimators)
    compares = config.estimator.group_relative and not config.estimator.per_turn
    if size == 1 and compares:
        yield Problem("adv_estimator", config.adv_estimator, alone, f"{larger}, or use adv_estimator: reinforce")
    for key, value in config.reward_scopes.items():
        if value is not None and (compares or config.uses_greedy_baseline):
            message = f"{config.adv_estimator} brings its own baseline"
            yield Problem(key, value, message, f"remove {key}, or use adv_estimator: reinforce")
        elif value == "group" and size == 1:
            yield Problem(key, value, alone, f"{larger}, or use batch")
    if config.error_max_len_clip != (config.error_max_len_threshold is not None):
        fix = (
            "a number of tokens, or error_max_len_clip: false"
            if config.error_max_len_clip
            else "null, or error_max_len_clip: true"
        )
        message = "error_max_len_clip and its threshold belong together"
        yield Problem("error_max_len_threshold", config.error_max_len_threshold, message, fix)
    if config.raft_best is not None and config.adv_estimator != "raft":
        yield Problem(
            "raft_best", config.raft_best, f"{config.adv_estimator} does not read it", "remove it, or adv_estimator: raft"
        )
    low, high = config.difficulty_low_threshold, config.difficulty_high_threshold
    if low >= high:
        yield Problem(
            "difficulty_low_threshold",
            low,
            f"{low:g} >= difficulty_high_threshold {high:g}: no group passes",
            f"less than {high:g}",
        )
    if config.difficulty_mask and size == 1:
        yield Problem("difficulty_mask", True, alone, larger)


def _data(config: RLVRConfig) -> Iterator[Problem]:
    for name, data in config.data_sources.items():
        if name != "actor_train" or not config.only_evaluates:
            yield from data_problems(f"{name}.data_args", data)


def data_problems(key: str, data: DataArguments) -> Iterator[Problem]:
    if data.path is None and (not data.files or "" in data.files):
        yield Problem(f"{key}.file_name", MISSING_VALUE, "names no prompt file", "a file of prompts or a list of them, or path")
    if data.path is not None and data.files:
        yield Problem(f"{key}.path", data.path, "and file_name are both given", "remove one of the two")
    for name in ("subset_name", "split", "revision") if data.path is None else ():
        if (value := getattr(data, name)) != getattr(DataArguments, name):
            yield Problem(f"{key}.{name}", value, "belongs to path, which is not given", "remove it, or write path")
    for name in ("system_prompt", "continue_final_message") if data.template == "none" else ():
        if value := getattr(data, name):
            message = "is never rendered: template none takes the prompt's text as it stands"
            yield Problem(f"{key}.{name}", value, message, "template: native, or remove it")


def _pass_rates(config: RLVRConfig) -> Iterator[Problem]:
    key, chosen = "actor_train.data_args.pass_rate_curriculum", config.actor_train.data_args.pass_rate_curriculum
    if chosen is None or config.only_evaluates:
        return
    if config.groups_address is not None:
        message = "is not kept in a database of groups: each explorer would measure for itself"
        yield Problem(key, chosen, message, "one process: mode: both without groups_database; or remove it")
    if config.total_epochs is not None:
        message = "and pass_rate_curriculum are both given: how long an epoch is, is measured on the way"
        yield Problem("total_epochs", config.total_epochs, message, "remove it; max_steps says how long the run is")
    for domain, reward in config.rewards.items():
        if reward.reward_model is not None:
            message = f"rewards.{domain} has a reward_model, whose scores say neither pass nor fail"
            yield Problem(key, chosen, message, "remove one of the two")


def _epochs(config: RLVRConfig) -> Iterator[Problem]:
    if config.total_epochs is not None and config.max_steps != BaseConfig.max_steps:
        fix = "remove one of the two"
        yield Problem("total_epochs", config.total_epochs, f"and max_steps {config.max_steps} are both given", fix)


def _domains(config: RLVRConfig) -> Iterator[Problem]:
    if not config.rewards:
        yield Problem("rewards", MISSING_VALUE, "has no domain", f"rewards: {{math: {{worker_cls: {WORKER}}}}}, or another")
    owner: dict[str, str] = {}
    for domain, reward in config.rewards.items():
        key = f"rewards.{domain}"
        if isinstance(reward.worker_cls, str) and not DOTTED_PATH.fullmatch(reward.worker_cls):
            yield Problem(f"{key}.worker_cls", reward.worker_cls, "is not a dotted path", f"such as {WORKER}")
        for tag in reward.tags(domain):
            if tag in owner:
                yield Problem(f"{key}.tag_included", tag, f"the tag belongs to rewards.{owner[tag]} already", "name it once")
            owner.setdefault(tag, domain)
        yield from _query_filter(config, key, domain)
        yield from _judging_models(key, reward)
    shares = config.actor_train.data_args.domain_interleave_probs
    key = "actor_train.data_args.domain_interleave_probs"
    for domain in shares:
        if domain not in config.rewards:
            known, fix = ", ".join(config.rewards) or "none", did_you_mean(domain, config.rewards, "remove it")
            yield Problem(f"{key}.{domain}", shares[domain], f"there is no rewards.{domain} (domains: {known})", fix)


def _judging_models(key: str, reward: RewardConfig) -> Iterator[Problem]:
    for name, model in reward.models.items():
        strategy, what = model.strategy_args, f"{key}.{name}.strategy_args"
        if strategy.strategy_name not in model.engines:
            message = (
                f"{strategy.strategy_name} serves no classifier here" if strategy.strategy_name in ENGINES else "is no engine"
            )
            yield Problem(f"{what}.strategy_name", strategy.strategy_name, message, " or ".join(model.engines))
        elif not engine_of(strategy.strategy_name).package:
            for option, value in strategy.strategy_config.items():
                yield Problem(f"{what}.strategy_config.{option}", value, "is not read for a model that judges", "remove it")
    if reward.models and reward.world_size != 1:
        message = "there is one worker for each engine of its model"
        yield Problem(f"{key}.world_size", reward.world_size, message, "remove it")
    if len(reward.models) > 1:
        yield Problem(f"{key}.reward_model", "given", "and judge are both given", "remove one of the two")


def _query_filter(config: RLVRConfig, key: str, domain: str) -> Iterator[Problem]:
    chosen = config.rewards[domain].query_filter_config
    if chosen.group_filter_cls is not None and chosen.type != "no_filter":
        message = f"{chosen.type} is chosen, too"
        fix = "type: no_filter, or no group_filter_cls"
        yield Problem(f"{key}.query_filter_config.group_filter_cls", chosen.group_filter_cls, message, fix)
    given = chosen.filter_args
    read = {"no_filter": (), "mean_filter": ("threshold_down", "threshold_up"), "std_filter": ("std_threshold",)}[chosen.type]
    values = {item.name: getattr(given, item.name) for item in fields(given)}
    for name, value in values.items():
        if value is not None and name not in read:
            yield Problem(f"{key}.query_filter_config.filter_args.{name}", value, f"{chosen.type} does not read it", "remove it")
    if read and all(values[name] is None for name in read):
        yield Problem(
            f"{key}.query_filter_config.filter_args",
            MISSING_VALUE,
            f"{chosen.type} needs {' or '.join(read)}",
            f"{{{read[0]}: 0}}",
        )
    low, high = given.threshold_down, given.threshold_up
    if low is not None and high is not None and low >= high:
        name = f"{key}.query_filter_config.filter_args.threshold_down"
        yield Problem(name, low, f"{low:g} >= threshold_up {high:g}: every group is dropped", f"less than {high:g}")
    if chosen.type == "std_filter" and config.num_return_sequences_in_group == 1:
        message = "needs groups, but num_return_sequences_in_group is 1: every group is dropped"
        yield Problem(f"{key}.query_filter_config.type", chosen.type, message, "no_filter, or a larger group")

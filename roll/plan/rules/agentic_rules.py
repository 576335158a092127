"""Rules of the agentic pipeline's own keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from roll.core.configs.agentic import ENV_MANAGERS, EQUAL_REWARDS, LOOPBACK, TRAJ_ENV_MANAGER, AgenticConfig, EnvManagerConfig
from roll.core.configs.dotted_path import DOTTED_PATH, full_path
from roll.core.configs.estimators import GROUP_RELATIVE, STEP_ESTIMATORS
from roll.core.configs.fields import default_of
from roll.core.configs.ppo import MAIN_SET, set_key
from roll.core.configs.problems import MISSING_VALUE, Problem, did_you_mean
from roll.core.configs.tools import ToolWrapperConfig
from roll.plan.rules.loss_rules import unusable_estimator
from roll.plan.rules.program_rules import host_problems, program_problems
from roll.plan.rules.schedule_rules import WHOLE
from roll.plan.rules.set_names import set_names


def agentic_problems(config: AgenticConfig) -> Iterator[Problem]:
    for rule in (_lengths, _environments, _programs, _groups, _mixture, _validation, _advantages, _normalisation, _data):
        yield from rule(config)
    yield from set_names(config.validation_sets)


def _lengths(config: AgenticConfig) -> Iterator[Problem]:
    try:
        config.lengths()
    except ValueError as error:
        value = MISSING_VALUE if config.sequence_length is None else config.sequence_length
        yield Problem("sequence_length", value, str(error), "e.g. 8192, and max_tokens_per_step well below it")


def _environments(config: AgenticConfig) -> Iterator[Problem]:
    if not config.custom_envs:
        yield Problem(
            "custom_envs", MISSING_VALUE, "has no environment", "custom_envs: {FrozenLake: {env_type: frozen_lake}}, or another"
        )
    for tag, env in config.custom_envs.items():
        key = f"custom_envs.{tag}"
        if "/" in tag:
            yield Problem(key, tag, "a tag has no '/'", f"name it {tag.replace('/', '-')}")
        if not DOTTED_PATH.fullmatch(env.env_manager_cls):
            fix = full_path(env.env_manager_cls, ENV_MANAGERS, f"{TRAJ_ENV_MANAGER}, or my_package.my_module.MyManager")
            yield Problem(f"{key}.env_manager_cls", env.env_manager_cls, "is not a dotted path", fix)
        yield from program_problems(tag, env)
        if env.tool_wrapper is not None and env.keeps_conversation:
            message = "has no effect: an environment of messages has tools of its own"
            yield Problem(
                f"{key}.tool_wrapper",
                "given",
                message,
                f"remove it, or env_manager_cls: {TRAJ_ENV_MANAGER} and an environment of texts",
            )
        elif env.tool_wrapper is not None:
            template = config.actor_train.data_args.template
            yield from tool_problems(f"{key}.tool_wrapper", env.tool_wrapper, template, not env.by_turn)


def _programs(config: AgenticConfig) -> Iterator[Problem]:
    template, tags = config.actor_train.data_args.template, [tag for tag, env in config.custom_envs.items() if env.program]
    if tags and template == "none":
        message = f"the messages of programs (custom_envs.{tags[0]}) are put into words by the model's chat template"
        yield Problem("actor_train.data_args.template", template, message, "native")
    yield from host_problems(config.gateway_host)
    if config.gateway_host != LOOPBACK and not tags:
        yield Problem("gateway_host", config.gateway_host, "has no effect: no custom_envs is a program", "remove it")
    if tags and config.adv_estimator == "gae":
        message = f"values an episode that is one sample, and a program's (custom_envs.{tags[0]}) may become several"
        yield Problem("adv_estimator", "gae", message, "grpo, or another without a critic")


def _mixture(config: AgenticConfig) -> Iterator[Problem]:
    chosen = config.pass_rate_mixture
    if chosen is None or config.only_evaluates:
        return
    if config.groups_address is not None:
        message = "is not kept in a database of groups: each explorer would measure for itself"
        yield Problem("pass_rate_mixture", chosen, message, "one process: mode: both without groups_database; or remove it")
    if len(config.domain_weights) < 2:
        yield Problem(
            "pass_rate_mixture", chosen, "has no effect: one tag alone is played", "remove it, or name more custom_envs"
        )


def _groups(config: AgenticConfig) -> Iterator[Problem]:
    managers = {"train_env_manager": config.train_env_manager, **_validation_managers(config)}
    for key, manager in managers.items():
        yield from _partition(config, key, manager)
    size, batch = config.group_size, config.rollout_batch_size
    if batch % size:
        below = batch // size * size
        fix = f"rollout_batch_size {f'{below} or ' if below else ''}{below + size}"
        yield Problem("rollout_batch_size", batch, f"{batch} episodes are not a whole number of groups of {size}", fix)


def _partition(config: AgenticConfig, key: str, manager: EnvManagerConfig) -> Iterator[Problem]:
    tags, counts = manager.tags or list(config.custom_envs), manager.num_groups_partition
    for i, tag in enumerate(tags):
        if tag not in config.custom_envs:
            known = ", ".join(config.custom_envs) or "none"
            fix = did_you_mean(tag, config.custom_envs, f"one of these, or add custom_envs.{tag}")
            yield Problem(f"{key}.tags[{i}]", tag, f"there is no custom_envs.{tag} (known: {known})", fix)
    if len(set(tags)) < len(tags):
        yield Problem(f"{key}.tags", tags, "names a tag more than once", f"[{', '.join(dict.fromkeys(tags))}]")
    if counts and len(counts) != len(tags):
        yield Problem(
            f"{key}.num_groups_partition",
            counts,
            f"{len(counts)} parts for {len(tags)} tags",
            "[] for equal parts, or one number a tag",
        )
    elif counts and sum(counts) != manager.num_env_groups:
        message = f"{' + '.join(map(str, counts))} = {sum(counts)}, but num_env_groups is {manager.num_env_groups}"
        yield Problem(f"{key}.num_groups_partition", counts, message, f"num_env_groups: {sum(counts)}")
    fix = full_path(manager.group_filter_cls or "", [EQUAL_REWARDS], f"{EQUAL_REWARDS}, or my_module.my_filter")
    if manager.group_filter_cls is not None and not DOTTED_PATH.fullmatch(manager.group_filter_cls):
        yield Problem(f"{key}.group_filter_cls", manager.group_filter_cls, "is not a dotted path", fix)
    if manager.group_filter_cls == EQUAL_REWARDS and manager.group_size == 1:
        message = f"needs groups, but {key}.group_size is 1: every group is dropped"
        yield Problem(f"{key}.group_filter_cls", manager.group_filter_cls, message, "remove it, or group_size of at least 2")


def _validation_managers(config: AgenticConfig) -> dict[str, EnvManagerConfig]:
    """The env manager of each validation set, by its key."""
    keys = {name: "val_env_manager" if name == MAIN_SET else f"{set_key(name)}.env_manager" for name in config.validations}
    return {keys[name]: validation.env_manager for name, validation in config.validations.items()}


def _validation(config: AgenticConfig) -> Iterator[Problem]:
    managers, count = _validation_managers(config), config.val_batch_size
    if config.validation is not None and config.val_env_manager is None:
        message = "has no effect: there is no val_env_manager"
        yield Problem("validation", "given", message, "add val_env_manager, or remove it")
    if count is not None and not managers:
        yield Problem("val_batch_size", count, "has no effect: there is no validation set", "add val_env_manager, or remove it")
    for key, manager in managers.items():
        if count is not None and count % manager.group_size:
            message = f"{count} episodes are not a whole number of groups of {manager.group_size} ({key})"
            yield Problem(
                "val_batch_size", count, message, f"{count // manager.group_size * manager.group_size or manager.group_size}"
            )
        if manager.group_size_redundancy:
            message = "a validation counts every episode"
            yield Problem(f"{key}.group_size_redundancy", manager.group_size_redundancy, message, "remove it")
        if manager.group_filter_cls is not None:
            yield Problem(f"{key}.group_filter_cls", manager.group_filter_cls, "a validation counts all groups", "remove it")


def _advantages(config: AgenticConfig) -> Iterator[Problem]:
    estimator = config.adv_estimator
    yield from unusable_estimator(estimator, config.refused_estimators)
    if config.group_size == 1 and estimator in GROUP_RELATIVE:
        message = "compares the episodes of a group, but train_env_manager.group_size is 1"
        yield Problem("adv_estimator", estimator, message, "a larger group_size, or adv_estimator: reinforce")
    if estimator == "gae":
        yield from _gae(config)
    if estimator in STEP_ESTIMATORS:
        kl, whiten = config.add_token_level_kl, config.whiten_rewards
        unread = {"gamma": config.gamma != 1, "add_token_level_kl": kl, "whiten_rewards": whiten}
        instead = {
            "gamma": f"1, and step_reward_gamma: {config.gamma:g}",
            "add_token_level_kl": f"false, and use_kl_loss: true with kl_loss_coef: {config.init_kl_coef:g}",
            "whiten_rewards": "false, and whiten_advantages: true",
        }
        for key, given in unread.items():
            if given:
                message = f"{estimator} gives every turn its own advantage and does not read it"
                yield Problem(key, getattr(config, key), message, instead[key])


def _gae(config: AgenticConfig) -> Iterator[Problem]:
    """A critic judges each token of an episode that is one sample; observations between the turns are no actions."""
    if config.gamma != 1:
        message = "discounts by turn, but gae takes each token as an action"
        yield Problem("gamma", config.gamma, message, "gamma: 1, and lambd below 1 to look less far ahead")
    for tag in config.custom_envs:
        if config.custom_envs[tag].by_turn:
            message = "makes a sample of each turn, and no value is carried from one sample to the next"
            key = f"custom_envs.{tag}.env_manager_cls"
            yield Problem(key, config.custom_envs[tag].env_manager_cls, message, f"{TRAJ_ENV_MANAGER}, or adv_estimator: grpo")


def _normalisation(config: AgenticConfig) -> Iterator[Problem]:
    normalization, estimator, key = config.reward_normalization, config.adv_estimator, "reward_normalization"
    if normalization.grouping == "state" and estimator != "step_reinforce":
        yield Problem(
            f"{key}.grouping", "state", f"{estimator} does not take it", "traj_group_id, or adv_estimator: step_reinforce"
        )
    if normalization.grouping in ("batch", "tags") and estimator in GROUP_RELATIVE:
        message = f"{estimator} compares the episodes of a group"
        yield Problem(f"{key}.grouping", normalization.grouping, message, "traj_group_id, or adv_estimator: reinforce")
    if config.train_on_arrival and not config.only_explores and normalization.grouping in ("batch", "tags"):
        yield Problem(f"{key}.grouping", normalization.grouping, WHOLE, "traj_group_id")
    for name, value in config.reward_scopes.items():
        if (
            value == "group"
            and normalization.grouping == "traj_group_id"
            and config.group_size == 1
            and estimator not in STEP_ESTIMATORS
        ):
            message = "a group of one has nothing to compare with, and train_env_manager.group_size is 1"
            yield Problem(name, value, message, "grouping: tags or batch, or a larger group_size")


def _data(config: AgenticConfig) -> Iterator[Problem]:
    data = config.actor_train.data_args
    if data.template == "chatml":
        yield Problem("actor_train.data_args.template", "chatml", "is for prompts of one turn", "native or none")
    of_episodes = ("template", "chat_template_kwargs", "images")
    if data.images is not None and data.images.column != default_of(fields(data.images)[0]):
        message = "episodes come from environments, not from a file"
        yield Problem("actor_train.data_args.images.column", data.images.column, message, "remove it")
    for item in [item for item in fields(data) if item.name not in of_episodes]:
        if (value := getattr(data, item.name)) != default_of(item):
            yield Problem(
                f"actor_train.data_args.{item.name}", value, "episodes come from environments, not from a file", "remove it"
            )


def tool_problems(key: str, wrapper: ToolWrapperConfig, template: str, shows_messages: bool) -> Iterator[Problem]:
    """Yields problems. `key`: dotted path of the wrapper; `template`: the run's template; `shows_messages`: True if the tag's env
    manager shows tool results as messages."""
    if not wrapper.tool_configs:
        yield Problem(f"{key}.tool_configs", MISSING_VALUE, "names no tool", "[{tool_id: python_code}]")
    args = wrapper.wrapper_args
    if args.tool_execute_error_reward and (args.tool_reward or args.tool_success_reward):
        message = "takes the place of tool_reward and tool_success_reward, and they are given, too"
        yield Problem(
            f"{key}.wrapper_args.tool_execute_error_reward",
            args.tool_execute_error_reward,
            message,
            "0, or no tool_reward and tool_success_reward",
        )
    if wrapper.call_format == "template" and template != "native":
        message = f"calls are put into words by the model's chat template, and actor_train.data_args.template is {template}"
        yield Problem(f"{key}.call_format", "template", message, "actor_train.data_args.template: native, or call_format: text")
    elif wrapper.call_format == "template" and not shows_messages:
        message = "needs a conversation that goes on, and env_manager_cls begins each turn afresh"
        yield Problem(f"{key}.call_format", "template", message, "text, or the default of env_manager_cls")

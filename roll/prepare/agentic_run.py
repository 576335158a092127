"""The agentic run: a group is a number of episodes in equal environments, played by coordinators.

`prepare` finds everything that can be known, and be wrong, before the first worker starts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from roll.chat.dialogue import Dialogue
from roll.core.configs.agentic import AgenticConfig, EnvConfig
from roll.core.configs.dotted_path import import_object
from roll.core.configs.estimators import STEP_ESTIMATORS
from roll.core.configs.problems import Collector, Problem
from roll.core.data.sample import Prompt
from roll.core.distributed.backend import WorkerSpec
from roll.core.distributed.cluster import Cluster
from roll.core.distributed.devices import Inventory, place_on_cpus
from roll.core.distributed.user_code import SLIPS, START_S, try_aside
from roll.core.engines.engine_fleet import EngineFleet
from roll.core.errors import EnvFailure
from roll.core.explorer.agentic import AgenticExplorer, EpisodeSource
from roll.core.explorer.coordinators import Coordinators
from roll.core.explorer.explorer import Exploration
from roll.core.flow.stage import AnyStage, Stage
from roll.core.groups.filters import GroupFilter
from roll.core.groups.tasks import NoTasks
from roll.core.pipeline.prepared import Prepared
from roll.core.pipeline.run import Run
from roll.core.record.ledger import Ledger
from roll.core.trainer.advantages import Advantages
from roll.core.trainer.agentic_advantages import AgenticAdvantages
from roll.core.workers.infer_interface import sampling_params
from roll.envs.check import looked_at
from roll.envs.env_manager import EnvManager, Record
from roll.envs.environment import NO_RESET, UNSEEN, Observation, unseen
from roll.envs.environment_worker import toolbox
from roll.envs.turn_files import TurnFiles
from roll.prepare.own_code import own_filter, try_estimator
from roll.prepare.pipeline import Pipeline
from roll.prepare.preparation import Preparation
from roll.prepare.row_sets import with_rows_first
from roll.strategies.vision.named_images import NamedImages
from roll.topologies.rows.warm_start import with_warm_start


@dataclass(frozen=True, slots=True, kw_only=True)
class AgenticPrepared(Prepared):
    config: AgenticConfig
    tokenizer_folder: str


def prepare(config: AgenticConfig, inventory: Inventory, one_process: bool = False) -> AgenticPrepared:
    """Raises `ConfigError` with every problem found: keys that contradict each other, devices, model folders, environments and
    their keys, templates, classes, output folder, checkpoint. `one_process`: all roles share this process (`--local`)."""
    envs, estimator = config.custom_envs, config.adv_estimator
    managers = {f"custom_envs.{tag}.env_manager_cls": env.env_manager_cls for tag, env in envs.items()}
    shared = Preparation(config, inventory, one_process, managers)
    collect = shared.collect
    if estimator not in STEP_ESTIMATORS and not config.uses_critic:
        collect("adv_estimator", estimator, partial(try_estimator, estimator), "package.module.function, importable here")
    folder = config.model_folder(config.actor_train)
    if not config.has_engines:
        tasks = shared.common(NoTasks(config.seed), group_filters(config, collect) if config.replay.filtered else {})
        return AgenticPrepared(**tasks, validation=[], tokenizer_folder=folder)
    template = config.actor_train.data_args.template
    dialogue: Dialogue | None = None
    if shared.tokenizer is not None:
        key = "actor_train.data_args.template"
        fix = "a model with a chat template" if any(env.program for env in envs.values()) else "none"
        dialogue = collect(key, template, lambda: _dialogue(config, folder, shared), fix)
    rules = {tag: found for tag in envs if (found := _tried(config, tag, dialogue, shared)) is not None}
    filters = group_filters(config, collect)
    configured = {tag: _depends_on(env) for tag, env in envs.items()}
    bench = config.only_evaluates
    weights, mixture = config.domain_weights, config.pass_rate_mixture
    episodes = NoTasks(config.seed) if bench else EpisodeSource(weights, configured, config.seed, by_pass_rate=mixture)
    source = with_rows_first(episodes, shared)
    shared.restore(source)
    return AgenticPrepared(
        **shared.common(source, filters),
        rules=rules,
        validation=[shared.validation_set(name, *evaluated(config, name, configured)) for name in config.validations],
        tokenizer_folder=folder,
    )


def _dialogue(config: AgenticConfig, folder: str, shared: Preparation) -> Dialogue:
    """Raises `ValueError`."""
    sees = None if config.images_dir is None else NamedImages(Path(folder), Path(config.images_dir), shared.tokenizer)
    return Dialogue(shared.tokenizer, config.actor_train.data_args.template, shared.models.known, sees)


def _depends_on(env: EnvConfig) -> str:
    """Returns a digest of everything on which the rewards of a tag's episodes depend; it reveals no secret. A program's place,
    start and time limits are not part of it."""
    depends: list[object] = [env.env_type, env.env_config]
    if (program := env.program) is not None:
        depends += [program.command, program.setup, program.environment, program.reward, program.scoring]
    if env.tool_wrapper is not None:
        depends.append(asdict(env.tool_wrapper))
    return hashlib.sha256(json.dumps(depends, sort_keys=True, default=str).encode()).hexdigest()


def _tried(config: AgenticConfig, tag: str, dialogue: Dialogue | None, shared: Preparation) -> str | None:
    """Returns the instructions of an environment that was made, reset and put into words; None if it cannot even be made."""
    env, collect = config.custom_envs[tag], shared.collect
    if env.program is not None:
        from roll.envs.program.check import installed_problems

        collect.add([*installed_problems(env.program, f"custom_envs.{tag}.program")])
        return ""
    if env.tool_wrapper is not None:
        collect(f"custom_envs.{tag}.tool_wrapper", "given", partial(_try_tools, tag, env, dialogue, shared), "")
    rules: str | None = collect(f"custom_envs.{tag}.env_type", env.env_type, partial(_rules, env, tag), "")
    if rules is not None:
        shows = config.images_dir is not None
        began = collect(
            f"custom_envs.{tag}.env_type", env.env_type, partial(_try_reset, env, tag, shows), "roll env check says more"
        )
        if unseen(rules, began):
            shared.warnings.append(f"custom_envs.{tag}.env_type = {env.env_type!r}: {UNSEEN}")
        if dialogue is not None:
            _try_manager(config, tag, dialogue, rules, began, collect)
    return rules


def environment_workers(config: AgenticConfig, inventory: Inventory) -> int:
    """Returns the number of coordinators: enough for all environments together, but no more than there are cores to run them."""
    needed = 0
    managers = [validation.env_manager for validation in config.validations.values()]
    if not config.only_evaluates:
        managers.append(config.train_env_manager)
    for manager in managers:
        needed += -(-manager.env_count // manager.max_env_num_per_worker)
    return max(1, min(needed, inventory.nodes * inventory.cpus_per_node))


def group_filters(config: AgenticConfig, collect: Collector) -> dict[str, GroupFilter]:
    """Returns filters by tag; none without a filter."""
    if (path := config.train_env_manager.group_filter_cls) is None:
        return {}
    key = "train_env_manager.group_filter_cls"
    found = collect(key, path, partial(own_filter, path), "a function of rewards, importable here")
    return dict.fromkeys(config.custom_envs, found) if found is not None else {}


def evaluated(config: AgenticConfig, name: str, configured: Mapping[str, str]) -> tuple[list[Prompt], int]:
    """Returns the environments of a validation set, and the episodes in each."""
    manager = config.validations[name].env_manager
    source = EpisodeSource(config.partition(manager), configured, config.seed, name)
    return [source.next() for _ in range(config.episodes_of(manager) // manager.group_size)], manager.group_size


def _rules(env: EnvConfig, tag: str) -> str:
    """Returns the environment's rules, from an instance made only to check its configuration."""
    from roll.envs.elsewhere import asked, rules
    from roll.envs.packages import interpreter

    key = f"custom_envs.{tag}"
    found: str = asked(
        interpreter(env.env_type, env.python, f"{key}.python"), rules, env.env_type, env.env_config, f"{key}.env_config"
    )
    return found


def _try_reset(env: EnvConfig, tag: str, shows: bool) -> Observation | None:
    """Begins one episode, with the place and the time limits of the run's. Returns its observation, None if that is unknown.
    `shows`: it may show images. Raises `ValueError` for a slip in the environment's code; other failures may not recur when the
    run begins."""
    from roll.envs.environment_worker import environment_host

    async def reset() -> Observation:
        host = environment_host(tag, env, looked_at if shows else None)
        try:
            handle = await host.open(tag, env.env_type, env.env_config)
            return (await handle.reset(0))[0]
        finally:
            await host.close()

    try:
        return try_aside(reset, env.reset_timeout_s + START_S)
    except TimeoutError:
        return None
    except EnvFailure as failure:
        said = failure.message.removeprefix(f"{env.env_type}.reset: ")
        slips = tuple(f"{slip.__name__}:" for slip in SLIPS)
        if failure.kind == "exception" and said.startswith((*slips, *NO_RESET)):
            raise ValueError(f"its first reset(seed=0) fails: {said}") from failure
        return None


TOOLS_S = 30.0
"""Limit for a tag's tools to start."""


def _try_tools(tag: str, env: EnvConfig, dialogue: Dialogue | None, shared: Preparation) -> None:
    """Makes the tools, and puts a call and its result into words. Raises `ConfigError`."""
    key, tools = f"custom_envs.{tag}.tool_wrapper", toolbox(tag, env)

    async def begin() -> None:
        try:
            await tools.start()
        finally:
            await tools.close()

    try_aside(begin, 2 * START_S + TOOLS_S)
    shared.warnings += tools.look_around(key, shared.collect)
    if dialogue is not None and dialogue.native and not env.by_turn:
        shared.collect.add(tools.unshown(dialogue, key))


def _try_manager(
    config: AgenticConfig, tag: str, dialogue: Dialogue, rules: str, began: Observation | None, collect: Collector
) -> None:
    """Checks that the env manager of a tag plays the kind of observation that its environment shows."""
    env, key = config.custom_envs[tag], f"custom_envs.{tag}"
    try:
        manager_cls: type[EnvManager] = import_object(env.env_manager_cls)
    except ValueError:  # which `Preparation` tells
        return
    context = config.lengths().sequence
    manager = manager_cls(env, dialogue, instructions=rules, context=context, answer_tokens=config.answer_tokens(tag))
    in_messages = isinstance(began, list)
    if began is not None and type(began) not in manager.reads:
        given, plays, fix = (
            ("messages", "texts", "AgentNativeStepEnvManager") if in_messages else ("a text", "messages", "TrajEnvManager")
        )
        message = f"plays environments that show {plays}, and {env.env_type} shows {given}"
        collect.add([Problem(f"{key}.env_manager_cls", env.env_manager_cls, message, fix)])
    elif in_messages and not dialogue.native:
        message = f"{env.env_type} shows messages, and they need a chat template"
        collect.add([Problem("actor_train.data_args.template", config.actor_train.data_args.template, message, "native")])
    elif manager.by_template and not in_messages:
        fix = "{observation}, {turn_idx}, {step_count}, {actions_left}, {max_response_length}, {suffix}, {instructions}"
        collect(f"{key}.agent_template", env.agent_template, partial(_try_templates, manager), fix)


def _try_templates(manager: EnvManager) -> None:
    """Renders the first message for an empty observation."""
    if "{observation}" not in manager.config.agent_template:
        raise ValueError("lacks {observation}: the policy would see nothing")
    try:
        tokens = len(manager.dialogue.first(manager.system(), manager.message(Record(), "", {})))
    except (KeyError, IndexError) as error:
        raise ValueError(f"the templates have no field {error}") from error
    if tokens >= manager.context:
        raise ValueError(f"the first message alone has {tokens} tokens, sequence_length is {manager.context}")


ROLE = "environments"
WORKER = "roll.envs.environment_worker.EnvironmentWorker"


class AgenticRun(Run):
    config: AgenticConfig
    prepared: AgenticPrepared

    def own_specs(self) -> Mapping[str, Sequence[WorkerSpec]]:
        prepared = self.prepared
        kwargs = {
            "config": self.config,
            "tokenizer_folder": prepared.tokenizer_folder,
            "instructions": prepared.rules,
            "context": prepared.derived.sequence_length,
            "requests_per_engine": prepared.derived.requests_per_engine,
            "known": prepared.known,
            "turns": prepared.run_dir.resolve(),
        }
        placements = place_on_cpus(environment_workers(self.config, self.inventory), self.inventory)
        return {ROLE: [WorkerSpec(f"{ROLE}-{placement.rank}", WORKER, placement, kwargs) for placement in placements]}

    @staticmethod
    def advantages(config: AgenticConfig) -> Advantages:
        return with_warm_start(config, AgenticAdvantages(config))

    @staticmethod
    def rollouts(config: AgenticConfig, explorer: AgenticExplorer) -> list[AnyStage]:
        return [Stage("episodes", explorer.play, role="actor_infer", lanes=config.train_env_manager.num_env_groups)]

    async def explorer(
        self, exploration: Exploration, clusters: Mapping[str, Cluster], engines: EngineFleet, ledger: Ledger
    ) -> AgenticExplorer:
        config, prepared, changes = self.config, self.prepared, self.state.groups.changes
        coordinators = Coordinators(clusters[ROLE], changes, clusters["actor_infer"], engines.restartable)
        await coordinators.begin()
        generating = config.actor_infer.generating_args
        derived, ends = prepared.derived, prepared.ends
        sampling = sampling_params(generating, derived.max_new_tokens, ends, derived.keeps_sampling_mask, derived.replays_routing)
        files = TurnFiles(prepared.run_dir)
        if prepared.continues:
            files.forget_after(prepared.first_version)
        elif config.has_both_sides:
            files.clear()
        return AgenticExplorer(exploration, config, sampling, coordinators, prepared.source, files)


class AgenticPipeline(Pipeline[AgenticConfig, AgenticPrepared]):
    """`AgenticPipeline(config).run()` trains and returns the summary."""

    kind = AgenticRun

    def prepare(self, inventory: Inventory) -> AgenticPrepared:
        return prepare(self.config, inventory, one_process=self.local)

"""A coordinator: a worker that plays groups of episodes, environments and all, and asks the engines itself.

The driver sends it one call a group. Turns and tokens are between the coordinator and the engines, so the driver's work does not
grow with them.

A group of episodes has one environment and one seed, and is played until enough of them are finished (`play_group`). A failed
environment costs its episode; a rule, applied and counted here, decides about the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll.chat.dialogue import Dialogue
from roll.core.configs.agentic import AgenticConfig, EnvConfig, EnvFailurePolicy
from roll.core.configs.dotted_path import import_object
from roll.core.data.episode import AskPolicy, EpisodeTask, PolicyAnswer
from roll.core.data.sample import Sample
from roll.core.data.seeding import derive_seed
from roll.core.distributed.backend import WorkerHandle
from roll.core.distributed.cluster import Cluster
from roll.core.engines.rollout_client import RolloutClient
from roll.core.engines.router import Router
from roll.core.errors import EpisodeFailed, TemplateRefusal, WorkerDied
from roll.core.explorer.group_play import RULES, VALIDATION, GroupResult, GroupTask, play_group
from roll.envs.durable_turns import EnvTurns, GroupTurns, ProgramTurns, going_on
from roll.envs.env_manager import Environment, EnvManager
from roll.envs.turn_files import ATTEMPT, TurnFiles
from roll.plan.turn_bytes import most_bytes
from roll.prompts.chat_template import set_variables
from roll.prompts.image_folder import ImageFolder
from roll.prompts.messages import Show
from roll.prompts.shown_images import ShownImages
from roll.strategies.model_folder import open_tokenizer
from roll.strategies.vision.named_images import NamedImages

if TYPE_CHECKING:
    from roll.envs.host import EnvHandle, EnvHost
    from roll.envs.program.player import Programs
    from roll.envs.tools.env import EnvWithTools
    from roll.envs.tools.toolbox import Toolbox


class EnvironmentWorker:
    def __init__(
        self,
        config: AgenticConfig,
        tokenizer_folder: str,
        instructions: Mapping[str, str],
        context: int,
        requests_per_engine: int,
        known: int | None = None,
        turns: Path | None = None,
    ) -> None:
        """`instructions`: tag -> the rules of its environments. `known`: the models of the run know the token ids below. `turns`:
        the folder of the run, where turns are recorded; None: no turn is."""
        self._config = config
        self._capacity = requests_per_engine
        data = config.actor_train.data_args
        self._tokenizer = self.tokenizer(tokenizer_folder)
        set_variables(self._tokenizer, data.chat_template_kwargs)
        self._show, sees = None, None
        if config.images_dir is not None and data.images is not None:
            images = Path(config.images_dir)
            self._show = ShownImages(data.images, ImageFolder(images))
            sees = NamedImages(Path(tokenizer_folder), images, self._tokenizer)
        dialogue = Dialogue(self._tokenizer, data.template, known, sees)
        self._managers: dict[str, EnvManager] = {}
        for tag, env in config.custom_envs.items():
            if env.program is None:
                manager_cls: type[EnvManager] = import_object(env.env_manager_cls)
                self._managers[tag] = manager_cls(
                    env, dialogue, instructions=instructions[tag], context=context, answer_tokens=config.answer_tokens(tag)
                )
        self._dialogue, self._context = dialogue, context
        self._turns = TurnFiles(turns or Path())
        self._recorded = frozenset(tag for tag in config.custom_envs if turns is not None and config.records_turns(tag))
        self._hosts: dict[str, EnvHost] = {}
        self._toolboxes: dict[str, Toolbox] = {}
        self._programs: Programs | None = None
        self._engines: Cluster | None = None
        self._client: RolloutClient | None = None
        self._playing: dict[str, asyncio.Task[GroupResult]] = {}

    def tokenizer(self, folder: str) -> Any:
        return open_tokenizer(folder)

    async def connect(self, engines: Sequence[WorkerHandle], replaced: bool) -> None:
        """Connects the coordinator to the engines, before anything is played; a later call gives up everything in play.
        `replaced`: True if a dead engine comes back (`engine_up`), so that its requests only have to go elsewhere; if not, its
        death is an error."""
        await self.close()
        envs = self._config.custom_envs
        self._hosts = {tag: environment_host(tag, env, self._show) for tag, env in envs.items() if env.program is None}
        self._toolboxes = {tag: toolbox(tag, env) for tag, env in envs.items() if env.tool_wrapper is not None}
        await asyncio.gather(*(box.start() for box in self._toolboxes.values()))
        if len(self._hosts) < len(envs):
            self._programs = programs(self._config, self._dialogue, self._context, self._show)
        self._engines = Cluster("actor_infer", engines, self._config.rpc_timeout)
        router = Router(len(engines), self._capacity)
        keeper = self if replaced else None
        self._client = RolloutClient(self._engines, router, self._tokenizer, self._config.seed, keeper)

    async def engine_down(self, engine: int) -> None:
        """Sends no more requests to the engine."""
        assert self._client is not None
        self._client.close(engine)

    async def engine_silent(self, engine: int) -> None:
        """Called when the engine gives no sign of life, and may yet live."""
        assert self._client is not None
        self._client.doubt(engine)

    async def engine_up(self, engine: int, handle: WorkerHandle) -> None:
        """Called when the engine is back, as `handle`."""
        assert self._engines is not None and self._client is not None
        self._engines.put(engine, handle)
        self._client.open(engine)

    async def play_group(self, task: GroupTask) -> GroupResult:
        """Plays a group. Raises `RuntimeError` if an unreplaced engine died, and any error not caused by an environment."""
        playing = self._playing[task.key] = asyncio.ensure_future(self._play_group(task))
        try:
            await asyncio.wait([playing])
            return GroupResult([]) if playing.cancelled() else playing.result()
        except asyncio.CancelledError:
            playing.cancel()
            raise
        finally:
            del self._playing[task.key]

    async def cancel(self, key: str) -> None:
        """Gives up a group: aborts its requests on the engines and closes its environments."""
        if key in self._playing:
            self._playing[key].cancel()

    async def close(self) -> None:
        for playing in list(self._playing.values()):
            playing.cancel()
        await asyncio.gather(*(host.close() for host in self._hosts.values()), *(box.close() for box in self._toolboxes.values()))
        if self._programs is not None:
            await asyncio.gather(*self._playing.values(), return_exceptions=True)
            await self._programs.close()

    async def _play_group(self, task: GroupTask) -> GroupResult:
        env = self._config.custom_envs[task.tag]
        policy: EnvFailurePolicy = env.on_env_failure
        rule = VALIDATION if task.validation else RULES[policy]
        recorded = task.tag in self._recorded and not task.validation
        most = most_bytes(self._config, task.tag, self._context)
        turns = GroupTurns(self._turns, task.uid, most, task.sampling, task.version) if recorded else None
        try:
            if turns is not None:
                await turns.begin()
            episodes, outcome = await play_group(
                lambda episode, attempt: self._play_episode(task, env, episode, attempt, turns), task.started, task.needed, rule
            )
        finally:
            if turns is not None:
                turns.close()
        return GroupResult([sample for episode in episodes for sample in episode], outcome)

    async def _play_episode(
        self, task: GroupTask, env: EnvConfig, episode: int, attempt: int, turns: GroupTurns | None
    ) -> list[Sample]:
        of_group = EpisodeTask(uid=task.uid, tag=task.tag, index=episode, env_seed=task.env_seed)
        name = f"{episode}.{attempt}"

        async def ask(context: Sequence[int], turn: int, most: int, stop: tuple[str, ...] = ()) -> PolicyAnswer:
            return await self._ask(task, name, context, turn, most, stop)

        if env.program is not None:
            assert self._programs is not None
            return await self._programs.play(of_group, ask if turns is None else ProgramTurns(turns, name, ask).ask)
        if turns is None:
            samples = await self._play(env, of_group, ask)
        else:
            samples = await going_on(turns, name, lambda: self._play(env, of_group, ask, (turns, name)))
        for trajectory in (each.trajectory for each in samples if attempt and each.trajectory is not None):
            trajectory.metrics[ATTEMPT] = float(attempt)
        return samples

    async def _play(
        self, env: EnvConfig, task: EpisodeTask, ask: AskPolicy, recorded: tuple[GroupTurns, str] | None = None
    ) -> list[Sample]:
        """Plays an episode in an environment. `recorded`: the record of its group, and its name there."""
        manager = self._managers[task.tag]
        opened = await self._hosts[task.tag].open(task.tag, env.env_type, env.env_config)
        handle = opened if env.tool_wrapper is None else with_tools(opened, self._toolboxes[task.tag], manager)
        try:
            played: Environment = handle
            if recorded is not None:
                has_effects = await opened.has_resume()
                if not has_effects or handle is opened:  # what tools do between its steps is on no record
                    around = EnvTurns(*recorded, ask, handle, opened if has_effects else None)
                    played, ask = around, around.ask
            return await manager.play(played, task, ask)
        except TemplateRefusal as error:
            raise EpisodeFailed("chat_template", str(error)) from error
        finally:
            await handle.close()

    async def _ask(
        self, task: GroupTask, episode: str, context: Sequence[int], turn: int, most: int, stop: tuple[str, ...]
    ) -> PolicyAnswer:
        """Returns the policy's answer, a function of (run seed, group, episode, attempt, turn) and the weights."""
        assert self._client is not None
        seed = derive_seed(self._config.seed, task.uid, episode, turn)
        affinity, sampling = f"{task.key}/{episode}", task.sampling
        try:
            return await self._client.answer(f"{affinity}/{turn}", affinity, context, sampling, seed, most, stop, task.priority)
        except WorkerDied as error:
            raise RuntimeError(f"an engine died that is not replaced: {error}") from error  # no WorkerDied: the coordinator lives

    def report(self, engine: int, error: Exception) -> None:
        """Reports the death of an engine under a request. The driver notices it, too, and reports the replacement."""
        assert self._client is not None
        self._client.close(engine)


def programs(config: AgenticConfig, dialogue: Dialogue, context: int, show: Show | None) -> Programs:
    from roll.envs.program.player import Programs  # as below: no server is loaded where no program is played

    kept = config.rollout_log_per_step != 0
    return Programs(config.custom_envs, dialogue, config.gateway_host, context, config.answer_tokens, exchanges=kept, show=show)


def with_tools(env: EnvHandle, toolbox: Toolbox, manager: EnvManager) -> EnvWithTools:
    from roll.envs.tools.env import EnvWithTools  # as below

    return EnvWithTools(env, toolbox, manager.answers_to_tools)


def toolbox(tag: str, env: EnvConfig) -> Toolbox:
    """Raises `ConfigError`."""
    from roll.envs.tools.toolbox import Toolbox  # as below

    assert env.tool_wrapper is not None
    return Toolbox(env.tool_wrapper, f"custom_envs.{tag}.tool_wrapper", env.step_timeout_s)


def environment_host(tag: str, env: EnvConfig, show: Show | None = None) -> EnvHost:
    """`show`: as for `EnvHost`. Raises `ConfigError`."""
    from roll.envs.host import EnvHost  # environments are an optional part: where no environment is played, none is loaded
    from roll.envs.packages import interpreter

    python = interpreter(env.env_type, env.python, f"custom_envs.{tag}.python")
    most = {tag: env.max_env_step_concurrent}
    return EnvHost(env.execution, env.step_timeout_s, env.reset_timeout_s, most, python, env.memory_mb, show)

"""One episode of an environment outside a run, played as a run plays it: where it is tried, or looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roll.chat.dialogue import Dialogue, Sees
from roll.core.configs.agentic import EnvConfig
from roll.core.configs.arguments import ImageArguments
from roll.core.configs.dotted_path import import_object
from roll.core.data.episode import AskPolicy, EpisodeTask
from roll.core.data.sample import Sample
from roll.envs.elsewhere import asked, rules
from roll.envs.env_manager import EnvManager
from roll.envs.environment_worker import environment_host, toolbox, with_tools
from roll.envs.packages import interpreter
from roll.prompts.messages import Show


async def one_episode(
    tag: str,
    env: EnvConfig,
    dialogue: Dialogue,
    ask: AskPolicy,
    *,
    seed: int,
    context: int,
    answer_tokens: int,
    show: Show | None = None,
) -> list[Sample]:
    """`show`: stores the images that the environment shows. Raises `ConfigError` where the environment or its tools cannot
    be made, and the errors of `EnvManager.play`."""
    instructions = asked(interpreter(env.env_type, env.python, "python"), rules, env.env_type, env.env_config)
    manager_cls: type[EnvManager] = import_object(env.env_manager_cls)
    manager = manager_cls(env, dialogue, instructions=instructions, context=context, answer_tokens=answer_tokens)
    host = environment_host(tag, env, show)
    tools = None if env.tool_wrapper is None else toolbox(tag, env)
    try:
        opened = await host.open(tag, env.env_type, env.env_config)
        if tools is not None:
            await tools.start()
        handle = opened if tools is None else with_tools(opened, tools, manager)
        return await manager.play(handle, EpisodeTask(uid=tag, tag=tag, index=0, env_seed=seed), ask)
    finally:
        await host.close()
        if tools is not None:
            await tools.close()


def sight(model: Path, kept: Path, tokenizer: Any, images: ImageArguments) -> tuple[Sees, Show]:
    """Returns the means by which a model sees the images of an episode, and by which they are stored in the folder `kept`."""
    from roll.prompts.image_folder import ImageFolder
    from roll.prompts.shown_images import ShownImages
    from roll.strategies.vision.named_images import NamedImages

    return NamedImages(model, kept, tokenizer), ShownImages(images, ImageFolder(kept))

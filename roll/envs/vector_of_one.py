"""A vectorised environment of gymnasium with one sub-environment, as that sub-environment.

With more than one it is refused. Its parts are stepped together, so each turn of an episode would wait for the slowest answer of
all of them, and one that begins anew would wait for the others' ends; and where they draw from one generator, no episode is a
function of its own seed. As many vectors as there are episodes go each at its own pace.

Every episode begins with a `reset`, whatever the vector's autoreset mode. With SAME_STEP the last step shows the next episode,
and the ended one is in `info`. Where gymnasium's AsyncVectorEnv (1.4.0) does something else than its part, it is refused."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from roll.core.configs.problems import ConfigError, Problem

_AS_ARGUMENTS = "arguments of the AsyncVectorEnv (vector_kwargs of gymnasium.make_vec)"


class VectorOfOne(gymnasium.Env[Any, Any]):
    def __init__(self, vector: VectorEnv[Any, Any, Any]) -> None:
        """Raises `ConfigError`."""
        if flaw := _flaw(vector):
            vector.close()
            raise ConfigError([Problem("", type(vector.unwrapped).__name__, *flaw)])
        self.vector = vector
        self.action_space, self.observation_space = vector.single_action_space, vector.single_observation_space
        self.metadata, self.render_mode = vector.metadata, vector.render_mode
        self.spec = vector.spec if isinstance(vector.spec, EnvSpec) else None
        # Its own observation_space is not asked: there are packages where that is the space of a single one.
        self._observations_space = batch_space(self.observation_space, 1)

    @property
    def inner(self) -> Any:
        """The player."""
        inner: Any = self.vector.unwrapped
        return inner.envs[0].unwrapped if hasattr(inner, "envs") else inner

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        observations, infos = self.vector.reset(seed=seed, options=options)
        return self._only(observations), _only_info(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        empty: Any = create_empty_array(self.action_space, 1)
        actions = concatenate(self.action_space, [action], empty)
        observations, rewards, terminations, truncations, infos = self.vector.step(actions)
        observation, info = self._only(observations), _only_info(infos)
        terminated, truncated = bool(terminations[0]), bool(truncations[0])
        if (terminated or truncated) and "final_obs" in info:
            observation, info = info["final_obs"], info.get("final_info", {})
        return observation, float(rewards[0]), terminated, truncated, info

    def _only(self, observations: Any) -> Any:
        return next(iter(iterate(self._observations_space, observations)))

    def render(self) -> Any:
        frames = self.vector.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        self.vector.close()

    def has_wrapper_attr(self, name: str) -> bool:
        try:
            self.get_wrapper_attr(name)
        except AttributeError:
            return False
        return True

    def get_wrapper_attr(self, name: str) -> Any:
        """Returns the attribute of the vector, of its wrapped one, or of the sub-environment, if that is in this process."""
        held: Any = self.vector
        while not hasattr(held, name) and isinstance(held, VectorWrapper):
            held = held.env
        if not hasattr(held, name) and hasattr(held, "envs"):
            return held.envs[0].get_wrapper_attr(name)
        return getattr(held, name)


def _flaw(vector: VectorEnv[Any, Any, Any]) -> tuple[str, str] | None:
    """Returns the flaw for which it cannot be played, and the fix."""
    inner = vector.unwrapped
    if vector.num_envs != 1:
        what = (
            f"has {vector.num_envs} sub-environments, which are stepped together: each would wait for the slowest answer of all"
        )
        return what, "make it with num_envs 1; num_env_groups * group_size of it are played side by side, each at its own pace"
    if isinstance(inner, AsyncVectorEnv) and inner.shared_memory and _has_text(vector.single_observation_space):
        what = "shows no text: a Text that gymnasium shares between processes stays what it was at first"
        return what, f"{_AS_ARGUMENTS}: shared_memory false, autoreset_mode Disabled"
    if isinstance(inner, AsyncVectorEnv) and not inner.shared_memory and inner.autoreset_mode is AutoresetMode.NEXT_STEP:
        what = "loses the first action of an episode: its process resets once more, for without shared memory it forgets no end"
        return what, f"{_AS_ARGUMENTS}: autoreset_mode Disabled"
    return None


def _has_text(space: Any) -> bool:
    parts = space.spaces.values() if isinstance(space, spaces.Dict) else getattr(space, "spaces", ())
    return isinstance(space, spaces.Text) or any(map(_has_text, parts))


def _only_info(infos: Any) -> dict[str, Any]:
    """Returns the one info of a vector's, where `_key` is true if the sub-environment said `key`; or of a list of infos."""
    if isinstance(infos, list):
        return dict(infos[0])
    said = {}
    for key, value in infos.items():
        if f"_{key}" in infos and not infos[f"_{key}"][0]:
            continue
        if isinstance(value, dict):
            said[key] = _only_info(value)
        elif not (key.startswith("_") and key[1:] in infos):
            said[key] = value[0] if isinstance(value, list | tuple) or getattr(value, "ndim", 0) > 0 else value
    return said

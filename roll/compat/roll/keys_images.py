"""ROLL's keys of vision-language models: its files of RLVR on images, and of agents with a VL env manager.

ROLL knows by the model and the template that there are images; here `data_args.images` says it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from roll.compat.roll.rule import DROP, KeyRule, Siblings, ignored, lacking, value_at
from roll.core.configs.agentic import TRAJ_ENV_MANAGER

# A model's name as in Qwen2.5-VL-7B-Instruct, a template as in qwen2-vl.
_NAMED = re.compile(r"(^|[-_/.0-9])vl([-_/.]|$)", re.IGNORECASE)
_MANAGER = re.compile(r"\.VL\w*EnvManager$")
_TOWERS = ("vision", "visual", "model.vision", "model.visual")
_DATA = ("actor_train.data_args", "validation.data_args")
_SEEN = ("images", "image_max_pixels")
_SEES = "a model that sees: data_args.images, which is {} where it is not given"


def _named(value: object) -> bool:
    return isinstance(value, str) and bool(_NAMED.search(value))


def _tells(value: object, file: Siblings) -> bool:
    """Returns True if a name alone says that there are images."""
    data = value_at(file, ("actor_train", "data_args"))
    return _named(value) and not (isinstance(data, Mapping) and any(data.get(name) is not None for name in _SEEN))


def _images(file: Siblings) -> dict[str, Any]:
    rows = [block for block in _DATA if isinstance(value_at(file, tuple(block.split("."))), Mapping)]
    return {f"{block}.images": {} for block in dict.fromkeys((_DATA[0], *rows))}


def _freezes_towers(value: object, file: Siblings) -> bool:
    prefixes = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    towers = bool(prefixes) and all(isinstance(each, str) and each.strip().startswith(_TOWERS) for each in prefixes)
    return towers and sees(file)


def sees(file: Siblings) -> bool:
    """Returns True if the file is of a vision-language model, by its options or by names."""
    data = value_at(file, ("actor_train", "data_args"))
    named = (("pretrain",), ("actor_train", "model_args", "model_name_or_path"), ("actor_train", "data_args", "template"))
    given = isinstance(data, Mapping) and any(data.get(name) is not None for name in _SEEN)
    return given or any(_named(value_at(file, path)) for path in named)


def _is_drawn(value: object, block: Siblings) -> bool:
    config = block.get("env_config")
    return value == "sokoban" and isinstance(config, Mapping) and config.get("render_mode") == "rgb_array"


_BEFORE, _BEHIND = "pre_step_template", "next_step_template"


IMAGES = (
    KeyRule("pretrain", "alias", f"read as {_SEES}", lambda v, f: {"pretrain": v, **_images(f)}, _tells, "named VL", whole=True),
    KeyRule("actor_train.model_args.model_name_or_path", "alias", f"read as {_SEES}",
            lambda v, f: {".model_name_or_path": v, **_images(f)}, _tells, "named VL", whole=True),
    *(rule for block in _DATA for rule in (
        KeyRule(f"{block}.template", "alias", f"read as native, the tokenizer's own chat template, and {_SEES}",
                lambda v, b: {".template": "native", ".images": {}},
                lambda v, b: _named(v) and not any(b.get(name) is not None for name in _SEEN), "named VL", told=True),
        KeyRule(f"{block}.image_max_pixels", "alias", "read as `images.max_pixels`", lambda v, b: {".images": {"max_pixels": v}},
                lambda v, b: b.get("images") is None, "without `images`", absent=True),
        ignored(f"{block}.image_min_pixels", "the model's own processor makes small images larger (preprocessor_config.json)"),
        lacking(f"{block}.image_folder", "paths in rows begin at the folder of their file: move it there, or mend them"),
        *(lacking(f"{block}.{name}", "images alone are shown, no videos or sounds: remove it, and rows with any") for name in (
            "video_folder", "audio_folder", "video_max_pixels", "video_min_pixels", "video_fps", "video_maxlen",
        )),
    )),
    KeyRule("actor_train.model_args.freeze_module_prefix", "alias", "read as `freeze_vision`",
            lambda v, f: {".freeze_vision": True}, _freezes_towers, "parts that see, with images", absent=True, whole=True),
    KeyRule("custom_envs.<name>.env_manager_cls", "alias", "read as TrajEnvManager, which shows the pictures of an environment",
            lambda v, b: {".env_manager_cls": TRAJ_ENV_MANAGER, f"{_DATA[0]}.images": {}},
            lambda v, b: isinstance(v, str) and bool(_MANAGER.search(v)), "VL…EnvManager", told=True),
    KeyRule("custom_envs.<name>.env_type", "alias", "read as sokoban_drawn, which is seen",
            lambda v, b: {".env_type": "sokoban_drawn", ".env_config.render_mode": DROP}, _is_drawn,
            "sokoban with env_config.render_mode: rgb_array"),
    *(KeyRule(f"custom_envs.<name>.{name}", "alias", f"read as agent_template: {_BEFORE}, {{observation}}, {_BEHIND}",
              lambda v, b: {".agent_template": f"{b.get(_BEFORE) or ''}{{observation}}{b.get(_BEHIND) or ''}"},
              lambda v, b: all(isinstance(b.get(each, ""), str) for each in (_BEFORE, _BEHIND)), "texts", absent=True)
      for name in (_BEFORE, _BEHIND)),
    *(lacking(f"custom_envs.<name>.{name}", "the text of each turn is agent_template, with the picture as {observation}; the "
              "rules are agent_system_template") for name in (_BEFORE, _BEHIND, "user_prompt_format")),
    lacking("custom_envs.<name>.reward_template", "rewards are told to nobody: they are no part of a turn's text"),
)  # fmt: skip

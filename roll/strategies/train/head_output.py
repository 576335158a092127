"""Models whose logits are more than their output layer's result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roll.strategies.model_folder import load_config

AFTER_THE_HEAD = ("final_logit_softcapping", "logit_scale", "logits_scaling", "logits_soft_cap", "lm_head_multiplier")
"""Keys of a model's config by which some families change their head's output."""


def changed_after_the_head(config: Any) -> str | None:
    """Returns the key in the model's configuration by which it changes its head's output."""
    text = config.get_text_config()
    return next((name for name in AFTER_THE_HEAD if getattr(text, name, None) not in (None, 1)), None)


def check_plain_head(folder: Path) -> None:
    """Raises `ValueError` if the model in the folder changes its head's output: they are whole then, in the layers' type."""
    if (name := changed_after_the_head(load_config(folder))) is not None:
        raise ValueError(f"the model changes its logits after the output layer ({name} in its config.json)")

"""Size of a model's vision tower, from `config.json` alone, and the cost of an image in it. Pure.

Parameters are exact, activations are those that autograd keeps (tests compare both with real models).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roll.core.configs.sizes import BYTES

_QWEN2_5 = {"depth": 32, "hidden_size": 3584, "intermediate_size": 3420, "num_heads": 16, "patch_size": 14}
_QWEN3 = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "patch_size": 16}
_TILES = {"num_hidden_layers": 12, "hidden_size": 1152, "intermediate_size": 3072, "num_attention_heads": 16}
_TILES |= {"image_size": 224, "patch_size": 32}
_DEFAULTS = {"qwen2_5_vl": _QWEN2_5, "qwen3_vl": _QWEN3, "idefics3": _TILES, "smolvlm": _TILES}
"""Sizes that a config.json leaves out, by the `model_type` of those that are known."""
_FRAMES = {"temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 2304}
_COLOURS = 3


@dataclass(frozen=True, slots=True)
class VisionShape:
    """Equal blocks over the patches of an image, and mergers, which make a feature of some patches."""

    blocks: int
    hidden: int
    intermediate: int
    heads: int
    inputs: int
    """Numbers of a patch."""
    patches: int
    """Patches of a feature, which takes the place of a token."""
    mergers: int
    gated: bool
    """RMS norms and a gated MLP; else layer norms and two layers."""
    rotary: bool
    outer_parameters: int
    """Parameters around the blocks."""

    @property
    def parameters(self) -> int:
        """Number of parameters; of a block 4·h² + 4·h and its norms, and 3·h·f + 2·f + h or 2·h·f + f + h."""
        h, f = self.hidden, self.intermediate
        mlp = 3 * h * f + 2 * f + h if self.gated else 2 * h * f + f + h
        return self.blocks * (4 * h * h + 4 * h + (2 if self.gated else 4) * h + mlp) + self.outer_parameters

    def block_bytes(self, element: int) -> int:
        """Returns the bytes that autograd keeps of a patch in a block: norms, attention (its queries, keys and values twice where
        they are rotated), and the MLP."""
        h, f = self.hidden, self.intermediate
        norms = h * (24 if element == BYTES["fp32"] else 16) + 8 if self.gated else 4 * h * element + 16
        return norms + (7 if self.rotary else 4) * h * element + 4 * self.heads + (4 if self.gated else 2) * f * element

    def outer_bytes(self, element: int) -> int:
        """Returns the same around the blocks: its pixels and the last norm; with rotary positions, their cosines and sines, and
        the tensors between the mergers' two layers, with a norm before each further one."""
        h, turned = self.hidden, 0
        if self.rotary:
            turned = 8 * h // self.heads + (2 + 3 * (self.mergers - 1)) * h * element
        norm = h * (12 if element == BYTES["fp32"] else 8) if self.gated else 2 * h * element
        return element * self.inputs + norm + turned


def vision_of(config: Mapping[str, Any]) -> VisionShape | None:
    """Returns the shape that a `config.json` describes; None for a model that reads text. Raises `ValueError`."""
    family, given = str(config.get("model_type")), config.get("vision_config")
    if given is None:
        return None
    if family not in _DEFAULTS or not isinstance(given, Mapping):
        raise ValueError(f"model_type {family!r} has no size formula here for what sees (known: {', '.join(_DEFAULTS)})")
    sizes: dict[str, Any] = {**_FRAMES, **_DEFAULTS[family], **given}
    wrong = [name for name in {**_FRAMES, **_DEFAULTS[family]} if type(sizes[name]) is not int or sizes[name] < 1]
    if wrong:
        raise ValueError(f"vision_config has no {', '.join(wrong)}")
    return (_of_patches if "depth" in _DEFAULTS[family] else _tiled)(config, sizes)


def _tiled(config: Mapping[str, Any], sizes: Mapping[str, Any]) -> VisionShape:
    """Returns the shape of Idefics3 and SmolVLM."""
    h, text = sizes["hidden_size"], config.get("text_config") or {}
    inputs, patches = _COLOURS * sizes["patch_size"] ** 2, int(config.get("scale_factor", 2)) ** 2
    places = (sizes["image_size"] // sizes["patch_size"]) ** 2
    outer = inputs * h + h + places * h + 2 * h + patches * h * int(text.get("hidden_size", 0))
    return VisionShape(
        blocks=sizes["num_hidden_layers"],
        hidden=h,
        intermediate=sizes["intermediate_size"],
        heads=sizes["num_attention_heads"],
        inputs=inputs,
        patches=patches,
        mergers=1,
        gated=False,
        rotary=False,
        outer_parameters=outer,
    )


def _of_patches(config: Mapping[str, Any], sizes: Mapping[str, Any]) -> VisionShape:
    """Returns the shape of Qwen2.5-VL and Qwen3-VL."""
    h, gated = sizes["hidden_size"], config["model_type"] == "qwen2_5_vl"
    patches, out = sizes["spatial_merge_size"] ** 2, int(sizes.get("out_hidden_size", 3584))
    inputs = _COLOURS * sizes["temporal_patch_size"] * sizes["patch_size"] ** 2
    joined = patches * h
    merger = joined * joined + joined + joined * out + out
    deeper = 0 if gated else len(sizes.get("deepstack_visual_indexes", (8, 16, 24)))
    places = 0 if gated else h + sizes["num_position_embeddings"] * h
    outer = inputs * h + places + merger + (1 if gated else 2) * h + deeper * (merger + 2 * joined)
    return VisionShape(
        blocks=sizes["depth"],
        hidden=h,
        intermediate=sizes["intermediate_size"],
        heads=sizes["num_heads"],
        inputs=inputs,
        patches=patches,
        mergers=1 + deeper,
        gated=gated,
        rotary=True,
        outer_parameters=outer,
    )

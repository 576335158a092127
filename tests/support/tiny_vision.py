"""Tiny random models that see, with tokenizer, chat template and processor, and images for them: nothing is downloaded."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw
from tiny_models import symbol_tokenizer
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from roll.prompts.image_folder import ImageFolder

WORDS = ("<pad>", "<eos>", "<start>", "<image>", "<end>", "what", "where", "?", "circle", "square", "star", "line", "user", "bot")
TILES = ("<fake_token_around_image>", "<global-img>", "\n\n", "\n", *(f"<row_{r}_col_{c}>" for r in (1, 2) for c in (1, 2)))
"""Further words, of the families that cut images into tiles."""
IDS = {word: i for i, word in enumerate(WORDS)}
TEMPLATE = (
    "{%- for message in messages -%}{{ message.role if message.role == 'user' else 'bot' }}"
    "{%- if message.content is string -%}{{ message.content }}{%- else -%}{%- for part in message.content -%}"
    "{{ '<start><image><end>' if part.type == 'image' else part.text }}{%- endfor -%}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}bot{%- endif -%}"
)
PATCH, MERGED = 4, 2
_TEXT = {
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "bos_token_id": None,
    "eos_token_id": IDS["<eos>"],
    "pad_token_id": IDS["<pad>"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]},
}
_VISION = {"depth": 2, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "patch_size": PATCH}
_TOKENS = {
    "image_token_id": IDS["<image>"],
    "video_token_id": len(WORDS) - 1,
    "vision_start_token_id": IDS["<start>"],
    "vision_end_token_id": IDS["<end>"],
}


def tokenizer(more: tuple[str, ...] = ()) -> Any:
    special = ["<start>", "<image>", "<end>", *(word for word in more if "<" in word)]
    words = (*WORDS, *more)
    made = symbol_tokenizer(words, "|".join(word.replace("?", r"\?") for word in words), additional_special_tokens=special)
    made.chat_template = TEMPLATE
    return made


def _vision(text: dict[str, Any]) -> dict[str, Any]:
    return {**_VISION, "out_hidden_size": text.get("hidden_size", _TEXT["hidden_size"])}


def qwen2_5_vl(seed: int = 0, **text: Any) -> Qwen2_5_VLForConditionalGeneration:
    torch.manual_seed(seed)
    vision = {**_vision(text), "window_size": 2 * PATCH * MERGED, "fullatt_block_indexes": [1], "tokens_per_second": 2}
    config = Qwen2_5_VLConfig(text_config={**_TEXT, **text}, vision_config=vision, **_TOKENS)
    return Qwen2_5_VLForConditionalGeneration(config).eval()


def qwen3_vl(seed: int = 0, **text: Any) -> Qwen3VLForConditionalGeneration:
    torch.manual_seed(seed)
    vision = {**_vision(text), "deepstack_visual_indexes": [0], "num_position_embeddings": 64}
    config = Qwen3VLConfig(text_config={**_TEXT, "head_dim": 8, **text}, vision_config=vision, **_TOKENS)
    return Qwen3VLForConditionalGeneration(config).eval()


def tiled(config: Any, model: Any, seed: int, **text: Any) -> Any:
    torch.manual_seed(seed)
    words = {**_TEXT, "vocab_size": len(WORDS) + len(TILES), "model_type": "llama", "rope_parameters": None, **text}
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision |= {"image_size": 16, "patch_size": PATCH}
    made = config(text_config=words, vision_config=vision, scale_factor=2, image_token_id=IDS["<image>"], pad_token_id=0)
    return model(made).eval()


def smolvlm(seed: int = 0, **text: Any) -> SmolVLMForConditionalGeneration:
    return tiled(SmolVLMConfig, SmolVLMForConditionalGeneration, seed, **text)


def idefics3(seed: int = 0, **text: Any) -> Idefics3ForConditionalGeneration:
    return tiled(Idefics3Config, Idefics3ForConditionalGeneration, seed, **text)


MODELS = {"qwen2.5-vl": qwen2_5_vl, "qwen3-vl": qwen3_vl, "smolvlm": smolvlm, "idefics3": idefics3}


def for_vllm(family: str, seed: int = 0) -> Any:
    """A model of the family with heads of 32 numbers, the fewest that vLLM knows on CPUs."""
    text: dict[str, Any] = {"hidden_size": 64}
    if "qwen" in family:
        text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 4, 4]}
    if family == "qwen3-vl":
        text["head_dim"] = 32
        text["rope_parameters"]["mrope_interleaved"] = True
    return MODELS[family](seed, **text)


def save(model: Any, folder: Path, wide: float = 4.0) -> Path:
    """`wide`: a random model's weights are so much larger, that what it sees matters to what it says."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(wide)
    model.save_pretrained(folder)
    if model.config.model_type in ("smolvlm", "idefics3"):
        tokenizer(TILES).save_pretrained(folder)
        processor = {"smolvlm": SmolVLMImageProcessorPil, "idefics3": Idefics3ImageProcessorPil}[model.config.model_type]
        processor(size={"longest_edge": 32}, max_image_size={"longest_edge": 16}).save_pretrained(folder)
        return folder
    tokenizer().save_pretrained(folder)
    save_processor(folder)
    return folder


def save_processor(folder: Path) -> None:
    processor = Qwen2VLImageProcessorPil(
        patch_size=PATCH, merge_size=MERGED, temporal_patch_size=2, min_pixels=PATCH**2 * 4, max_pixels=PATCH**2 * 64
    )
    processor.save_pretrained(folder)


def drawn(shape: str, size: tuple[int, int] = (16, 16), color: str = "red", at: tuple[int, int] = (2, 2)) -> bytes:
    """A shape on white, as PNG."""
    image = Image.new("RGB", size, "white")
    draw, (x, y), side = ImageDraw.Draw(image), at, min(size) - 5
    if shape == "circle":
        draw.ellipse((x, y, x + side, y + side), outline=color, width=2)
    elif shape == "square":
        draw.rectangle((x, y, x + side, y + side), outline=color, width=2)
    elif shape == "star":
        draw.line((x, y, x + side, y + side), fill=color, width=2)
        draw.line((x, y + side, x + side, y), fill=color, width=2)
    else:
        draw.line((x, y + side // 2, x + side, y + side // 2), fill=color, width=3)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def stored(folder: Path, *images: bytes) -> list[int]:
    """The numbers of these images in a run's folder."""
    return [ImageFolder(folder).put(image, "PNG")[0] for image in images]

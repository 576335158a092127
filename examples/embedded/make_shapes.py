"""Makes a tiny model that sees, which knows nothing, and images of four shapes to ask it about.

`python examples/embedded/make_shapes.py [--out DIR] [--force]` writes `model/`, `images/`, `train.jsonl` and `validation.jsonl`.
Nothing is downloaded. A row asks `<image>what?` about an image of 24 x 24 pixels; its answer is one token: circle, square, cross
or line. The model is Qwen2.5-VL's architecture with random weights: it has to learn that a shape is asked for, which by chance
makes it right once in four, and to see.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from made_folder import command_line, make_folder
from PIL import Image, ImageDraw
from tiny_model import EOS, PAD, SPECIAL, reproducible
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

DEFAULT_OUT = Path(__file__).resolve().parent / "cache_shapes"
SHAPES = ("circle", "square", "cross", "line")
MARKS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
VOCABULARY = [*SPECIAL, *MARKS, "what?", *SHAPES]
TEMPLATE = (
    "{%- for message in messages -%}{%- if message.content is string -%}{{ message.content }}{%- else -%}"
    "{%- for part in message.content -%}"
    "{{ '<|vision_start|><|image_pad|><|vision_end|>' if part.type == 'image' else part.text }}"
    "{%- endfor -%}{%- endif -%}{%- endfor -%}"
)
SIDE, PATCH, MERGED = 24, 4, 2


@dataclass(frozen=True)
class Settings:
    """All that the result depends on."""

    format: int = 1
    """Raised when the maker itself changes."""
    seed: int = 42
    train_images: int = 1024
    validation_images: int = 128
    hidden_size: int = 64
    layers: int = 2
    vision_layers: int = 2


def drawn(shape: str, chance: random.Random) -> Image.Image:
    """A shape somewhere, in some dark color on a light one."""
    image = Image.new("RGB", (SIDE, SIDE), tuple(chance.randint(200, 255) for _ in range(3)))
    draw, color = ImageDraw.Draw(image), tuple(chance.randint(0, 110) for _ in range(3))
    size, width = chance.randint(12, 18), chance.choice((2, 3))
    x, y = (chance.randint(1, SIDE - size - 2) for _ in range(2))
    right, low = x + size, y + size
    if shape == "circle":
        draw.ellipse((x, y, right, low), outline=color, width=width)
    elif shape == "square":
        draw.rectangle((x, y, right, low), outline=color, width=width)
    elif shape == "cross":
        draw.line((x, y, right, low), fill=color, width=width)
        draw.line((x, low, right, y), fill=color, width=width)
    else:
        middle = y + size // 2
        draw.line((x, middle, right, middle), fill=color, width=width)
    return image


def tokenizer(words: Sequence[str] = VOCABULARY) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.WordLevel({token: i for i, token in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+\??"), "isolated")
    names = {"eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    made = PreTrainedTokenizerFast(tokenizer_object=core, additional_special_tokens=[*MARKS], **names)
    made.chat_template = TEMPLATE
    return made


def model_of(settings: Settings, words: Sequence[str] = VOCABULARY) -> Qwen2_5_VLForConditionalGeneration:
    size, ids = settings.hidden_size, {token: i for i, token in enumerate(words)}
    text: dict[str, Any] = {
        "vocab_size": len(words),
        "hidden_size": size,
        "intermediate_size": 2 * size,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "bos_token_id": None,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]},
    }
    vision = {
        "depth": settings.vision_layers,
        "hidden_size": size,
        "intermediate_size": 2 * size,
        "num_heads": 4,
        "patch_size": PATCH,
        "out_hidden_size": size,
        "window_size": SIDE,
        "fullatt_block_indexes": [settings.vision_layers - 1],
    }
    start, image, end, video = (ids[mark] for mark in MARKS)
    named = {"image_token_id": image, "video_token_id": video, "vision_start_token_id": start, "vision_end_token_id": end}
    return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision, **named))


def build(folder: Path, settings: Settings) -> dict[str, float]:
    """Fills an empty folder; returns the number of weights."""
    chance = random.Random(settings.seed)
    (folder / "images").mkdir()
    for part, count in (("train", settings.train_images), ("validation", settings.validation_images)):
        rows = []
        for i in range(count):
            shape, name = SHAPES[i % len(SHAPES)], f"images/{part}-{i}.png"
            drawn(shape, chance).save(folder / name)
            rows.append({"id": f"{part}-{i}", "tag": "shapes", "prompt": "<image>what?", "images": [name], "ground_truth": shape})
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with reproducible(settings.seed):
        torch.manual_seed(settings.seed)
        model = model_of(settings)
    return save(folder / "model", model)


def save(folder: Path, model: Qwen2_5_VLForConditionalGeneration, words: Sequence[str] = VOCABULARY) -> dict[str, float]:
    """Returns the number of weights."""
    model.save_pretrained(folder)
    tokenizer(words).save_pretrained(folder)
    pixels = {"min_pixels": SIDE * SIDE, "max_pixels": SIDE * SIDE}
    Qwen2VLImageProcessorPil(patch_size=PATCH, merge_size=MERGED, **pixels).save_pretrained(folder)
    return {"thousand_weights": sum(parameter.numel() for parameter in model.parameters()) / 1000}


def make(out: Path = DEFAULT_OUT, force: bool = False, settings: Settings = Settings()) -> Path:
    return make_folder(out, settings, build, force)


if __name__ == "__main__":
    command_line("Makes a tiny model that sees, and images of four shapes (seconds).", DEFAULT_OUT, make)

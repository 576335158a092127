"""What it saves to compute an image once that a group shares: `python benchmarks/images.py [--samples 8] [--side 224]`.

A random Qwen2.5-VL of 10 M weights takes the gradient of a group's samples, which all show one image: in one micro-batch, where
the image and the prompt stand once, and in a micro-batch for each. Prints tokens of the part that writes, patches of the part
that sees, what the backward pass keeps (of the largest micro-batch, and of all together), and seconds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from roll.core.algorithms.loss import LossSpec, prepare_batch
from roll.core.configs.arguments import FSDP2Config, ModelArguments, TrainingArguments
from roll.core.data.token_batch import TokenBatch
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import BatchTotals, RankContext
from roll.core.workers.train_spec import Optimisation, TrainSpec
from roll.prompts.image_folder import ImageFolder
from roll.strategies.vision.expander import Expander

IMAGE, VOCABULARY, QUESTION, ANSWER = 3, 64, 16, 32


def make_model(folder: Path) -> None:
    size = 256
    text = {"vocab_size": VOCABULARY, "hidden_size": size, "intermediate_size": 3 * size, "num_hidden_layers": 6}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [16, 8, 8]}
    vision = {"depth": 4, "hidden_size": size, "intermediate_size": 3 * size, "num_heads": 4, "out_hidden_size": size}
    ids = {"image_token_id": IMAGE, "video_token_id": 4, "vision_start_token_id": 5, "vision_end_token_id": 6}
    torch.manual_seed(0)
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision | {"fullatt_block_indexes": [3]}, **ids)
    Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder)
    core = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCABULARY)}, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=core, eos_token="t1").save_pretrained(folder)
    Qwen2VLImageProcessorPil().save_pretrained(folder)


def make_batch(prompt: list[int], samples: int) -> TokenBatch:
    generator = torch.Generator().manual_seed(0)
    answers = [torch.randint(7, VOCABULARY, (ANSWER,), generator=generator) for _ in range(samples)]
    length = len(prompt) + ANSWER
    mask = (torch.arange(length) >= len(prompt)).repeat(samples)
    return TokenBatch(
        lengths=torch.full((samples,), length),
        scores=torch.zeros(samples),
        temperatures=torch.ones(samples),
        tokens=torch.cat([torch.cat([torch.tensor(prompt), answer]) for answer in answers]),
        loss_mask=mask,
        behaviour_logprobs=torch.full((len(mask),), -4.0) * mask,
        advantages=torch.randn(len(mask), generator=generator) * mask,
    )


def spec(model: Path, images: Path, budget: int) -> TrainSpec:
    training = Optimisation(
        arguments=TrainingArguments(lr_scheduler_type="constant"),
        total_steps=10,
        max_grad_norm=1.0,
        max_tokens_per_microbatch=budget,
    )
    return TrainSpec(
        model_path=str(model),
        model=ModelArguments(dtype="fp32"),
        backend=FSDP2Config(),
        optimisation=training,
        max_tokens_per_microbatch_infer=budget,
        collective_timeout_s=60.0,
        images=str(images),
    )


def measured(strategy: Any, batch: TokenBatch) -> dict[str, float]:
    """Of one optimiser step."""
    found = {"tokens": 0.0, "patches": 0.0}
    trunk, kept, seen = strategy._model.model, [0], set[int]()

    def begin(*_: Any) -> None:
        kept.append(0)
        seen.clear()

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in seen:
            seen.add(tensor.untyped_storage().data_ptr())
            kept[-1] += tensor.untyped_storage().nbytes()
        return tensor

    def count(name: str, tensor: Tensor, axis: int) -> None:
        found[name] += tensor.shape[axis]

    hooks = [
        strategy._model.register_forward_pre_hook(begin),
        trunk.visual.register_forward_pre_hook(lambda _, given: count("patches", given[0], 0)),
        trunk.language_model.layers[0].register_forward_pre_hook(lambda _, given: count("tokens", given[0], 1)),
    ]
    loss = LossSpec(pg_variant="ppo")
    began = time.perf_counter()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        strategy.train_step(prepare_batch(batch, loss), loss, BatchTotals(int(batch.loss_mask.sum()), len(batch)))
    seconds = time.perf_counter() - began
    for hook in hooks:
        hook.remove()
    return found | {"kept_mb": max(kept) / 1e6, "kept_by_all_mb": sum(kept) / 1e6, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--side", type=int, default=224, help="pixels of the image's sides")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        model, images = Path(place) / "model", Path(place) / "images"
        make_model(model)
        photo = Path(place) / "photo.png"
        Image.effect_noise((options.side, options.side), 60).convert("RGB").save(photo)
        number, _ = ImageFolder(images).put(photo.read_bytes(), "PNG")
        view = Expander(model, images)._family.view(Image.open(photo))
        prompt = [*[5], *[number] * view.features, *[6], *range(7, 7 + QUESTION)]
        batch = make_batch(prompt, options.samples)
        print(
            f"{options.samples} samples of one image of {view.features} tokens, {QUESTION} of a question, {ANSWER} of an answer"
        )
        for name, budget in (("each alone", 1), ("together", 1 << 20)):
            strategy = make_train_strategy(RankContext(), spec(model, images, budget))
            measured(strategy, batch)
            told = measured(strategy, batch)
            print(f"{name:>10}: " + "  ".join(f"{key} {value:,.4g}" for key, value in told.items()))


if __name__ == "__main__":
    main()

"""Model folders from others: what is checked before any of it is used, and how tokenizers, configurations and models are read.

Invariants: the folder's own Python never runs (`trust_remote_code=False`, so that transformers does not ask on standard input
either); weights are safetensors of this folder; a model whose weights are not all there is refused, never filled at random.
"""

from __future__ import annotations

import importlib.util
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Size
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging
from transformers.utils.logging import disable_progress_bar

from roll.core.errors import boundary
from roll.core.weights.folder_files import CONFIG, check_entries, read_json, stored_tensors, value_head, weight_files
from roll.prompts.chat_template import try_template
from roll.strategies.vision.families import check_sight, sees
from roll.transports.packed import TYPES

MAKING_MODELS = threading.Lock()
"""Held while transformers makes a model: meanwhile it changes state of the whole process (default dtype, tied weights), and of
two workers in one process each would undo what the other has changed."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
SMALL_FILES = ("generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


_ROW = 8
"""torch's grouped product takes matrices whose rows are multiples of 16 bytes: of 8 numbers in the narrowest type."""


def check_model_folder(path: Path) -> None:
    """Raises `FileNotFoundError`, saying what is missing, unless `path` is a folder with a model and its tokenizer, and
    `ValueError` for a file that is damaged, or names files elsewhere. No tensor is read."""
    if path.is_file():
        raise ValueError(f"'{path}' is a file: name the folder that it is in")
    if not path.is_dir():
        raise FileNotFoundError(f"model folder '{path}' does not exist, and is no owner/model of the hub")
    check_entries(path)
    if (path / "adapter_config.json").exists():
        raise ValueError(f"model folder '{path}' has an adapter_config.json: its weights would be another folder's; merge them")
    if not (path / CONFIG).is_file():
        raise FileNotFoundError(f"model folder '{path}' has no config.json")
    config = read_json(path / CONFIG)
    if "transformers_weights" in config:
        raise ValueError(f"{path / CONFIG} has transformers_weights: a model folder's weights have their usual names here")
    for name in SMALL_FILES:
        if (path / name).is_file():
            read_json(path / name)
    files = weight_files(path)
    if not files:
        raise FileNotFoundError(f"model folder '{path}' has no weights (*.safetensors)")
    tensors = stored_tensors(files)
    if (layers := _layers(config)) > len(tensors):
        raise ValueError(f"{path / CONFIG} asks for {layers:,} layers, but the folder has {len(tensors)} tensors")
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise FileNotFoundError(f"model folder '{path}' has no tokenizer (one of {', '.join(TOKENIZER_FILES)})")


def check_weights(path: Path) -> None:
    """Raises `ValueError` unless the folder has every tensor that its architecture needs, in its shape.

    Knows it from the files' headers: the model is made of empty tensors, by transformers' own rules for names, and takes a
    second. Without accelerate, which transformers needs for that, and for quantized models it is found at loading."""
    config = load_config(path)
    stored = stored_tensors(weight_files(path))
    if importlib.util.find_spec("accelerate") is None or hasattr(config, "quantization_config"):
        return
    mapping: Any = _loader(path)._model_mapping
    if type(config) not in mapping:
        raise ValueError(f"'{path}' is not a causal language model (model_type {config.model_type!r})")
    with boundary(ValueError, f"the model of '{path}' cannot be made of its config.json"), _quiet():
        model, info = mapping[type(config)].from_pretrained(
            None,
            config=config,
            state_dict={name: torch.empty(tensor.shape, device="meta") for name, tensor in stored.items()},
            device_map="meta",
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    _refuse_incomplete(path, model, info, without_head=bool(value_head(path)))


def refuse_quantised(path: Path) -> None:
    """Raises `ValueError` for weights that cannot be trained, or replaced in an engine."""
    said = _quantisation(read_json(path / CONFIG))
    if said is not None:
        how = said.get("quant_method", "unknown") if isinstance(said, dict) else "unknown"
        raise ValueError(
            f"{path / CONFIG} has quantization_config (quant_method {how}): quantised weights cannot be trained, nor updated in "
            "an engine; name the folder of the model that was quantised"
        )


def _loader(path: Path) -> Any:
    return AutoModelForImageTextToText if sees(path) else AutoModelForCausalLM


def set_text_attention(model: Any, name: str) -> None:
    """Sets the attention of the layers that write; modules that see keep their own."""
    inside = [key for key in model.config.sub_configs if getattr(model.config, key) is model.config.get_text_config()]
    model.set_attn_implementation({key: name for key in inside} or name)


def load_config(path: Path) -> Any:
    """Raises `ValueError` for an architecture that transformers does not have."""
    with boundary(ValueError, f"{path / CONFIG} cannot be used", say=_without_advice):
        return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)


def load_model(
    path: Path,
    dtype: torch.dtype,
    attn_implementation: str,
    without_head: bool = False,
    state: dict[str, torch.Tensor] | None = None,
) -> PreTrainedModel:
    """A causal LM on the CPU, from safetensors in a local folder. `without_head`: its own head may be missing there. `state`: in
    place of the files' tensors, under the model's own names; what is of `dtype` becomes the model's, without a copy.

    Raises `ValueError` if other tensors are missing."""
    if state is None:
        return _load(_loader(path), path, dtype, attn_implementation, without_head)
    check_entries(path)
    config = load_config(path)
    mapping: Any = _loader(path)._model_mapping
    options = {"config": config, "state_dict": state, "dtype": dtype, "attn_implementation": attn_implementation}
    model = _made(mapping[type(config)], None, path, without_head, options)
    if (path / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(path, local_files_only=True)
    return model


def classifier_config(path: Path) -> Any:
    """Raises `ValueError` unless it is that of a sequence classifier with one output. What a folder does not say is not made up:
    a causal LM would become a classifier with random numbers for a head."""
    config = load_config(path)
    named = getattr(config, "architectures", None) or []
    if not any(str(name).endswith("ForSequenceClassification") for name in named):
        raise ValueError(f"'{path}' is no sequence classifier: {path / CONFIG} has architectures {named}")
    if config.num_labels != 1:
        raise ValueError(f"the classifier of '{path}' has {config.num_labels} outputs; a reward is one (num_labels: 1)")
    return config


def load_classifier(path: Path, dtype: torch.dtype, attn_implementation: str) -> PreTrainedModel:
    """A sequence classifier with one output, as `load_model`."""
    classifier_config(path)
    return _load(AutoModelForSequenceClassification, path, dtype, attn_implementation)


def _load(loader: Any, path: Path, dtype: torch.dtype, attn_implementation: str, without_head: bool = False) -> PreTrainedModel:
    check_entries(path)
    weight_files(path)
    options = {"dtype": dtype, "attn_implementation": attn_implementation, "local_files_only": True, "use_safetensors": True}
    return _made(loader, path, path, without_head, options)


def _made(loader: Any, source: Path | None, path: Path, without_head: bool, options: dict[str, Any]) -> PreTrainedModel:
    disable_progress_bar()  # a progress bar would be drawn over the run's own display
    with _quiet():
        model, info = loader.from_pretrained(
            source, trust_remote_code=False, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
    _refuse_incomplete(path, model, info, without_head)
    choose_experts_kernel(model)
    loaded: PreTrainedModel = model
    return loaded


def stored_dtype(path: Path) -> tuple[torch.dtype, set[str]]:
    """The number type that most of a folder's weights are stored in, and the names of those that need float32 besides; float32
    for other mixtures."""
    stored = stored_tensors(weight_files(path))
    sizes = Counter[str]()
    for tensor in stored.values():
        sizes[tensor.dtype] += prod(tensor.shape)
    ((most, _),) = sizes.most_common(1)
    if most not in ("F16", "BF16") or sizes.keys() - {most, "F32"}:
        return torch.float32, set()
    return TYPES[most], {name for name, tensor in stored.items() if tensor.dtype == "F32"}


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """Raises `ValueError`."""
    with boundary(ValueError, f"the tokenizer of '{path}' cannot be loaded", say=_without_advice):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    return tokenizer


def open_tokenizer(folder: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a local model folder; an error names what the folder lacks."""
    check_model_folder(Path(folder))
    return load_tokenizer(Path(folder))


def open_model(folder: str, trained: bool = False, images: bool = False) -> Any:
    """The tokenizer of a model folder from which a run may start: its weights are all there, and its chat template comes to an
    end. An error names what is wrong with the folder. `trained`: by the run, so its weights may not be quantised. `images`: it is
    shown some."""
    tokenizer = open_tokenizer(folder)
    check_sight(Path(folder), images)
    if trained:
        refuse_quantised(Path(folder))
    check_weights(Path(folder))
    try_template(tokenizer)
    return tokenizer


def open_classifier(folder: str) -> Any:
    """The tokenizer of a reward model's folder: a classifier with one output, and a chat template that comes to an end."""
    tokenizer = open_tokenizer(folder)
    classifier_config(Path(folder))
    if not tokenizer.chat_template:
        raise ValueError(f"the tokenizer of '{folder}' has no chat template: a reward model reads a conversation")
    try_template(tokenizer)
    return tokenizer


def _layers(config: dict[str, Any]) -> int:
    """The largest number of layers that a configuration gives any of its parts: transformers makes a list of so many entries."""
    names = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
    found = [config[name] for name in names if isinstance(config.get(name), int)]
    return max([*found, *(_layers(part) for part in config.values() if isinstance(part, dict))], default=0)


def _quantisation(config: dict[str, Any]) -> Any:
    """Returns the quantisation of a configuration, or of any of its parts; or None."""
    parts = [part for part in config.values() if isinstance(part, dict)]
    own = next((config[name] for name in ("quantization_config", "compression_config") if config.get(name)), None)
    return own or next((found for part in parts if (found := _quantisation(part)) is not None), None)


def _refuse_incomplete(path: Path, model: Any, info: dict[str, Any], without_head: bool) -> None:
    missing = set(info["missing_keys"])
    if without_head:
        head = model.get_output_embeddings()
        prefixes = tuple(f"{name}." for name, module in model.named_modules() if module is head)
        missing = {name for name in missing if not name.startswith(prefixes)} if prefixes else missing
    if missing:
        raise ValueError(f"the weights of '{path}' are not complete: {_listed(missing)} missing")
    if info["mismatched_keys"]:
        name, stored, needed = sorted(info["mismatched_keys"])[0]
        raise ValueError(f"{name} in '{path}' is {list(stored)}, but config.json makes it {list(needed)}")


def _listed(names: Collection[str]) -> str:
    first = sorted(names)[:3]
    more = f" and {len(names) - len(first)} more" if len(names) > len(first) else ""
    return f"{', '.join(first)}{more} {'is' if len(names) == 1 else 'are'}"


def _without_advice(error: BaseException) -> str:
    """transformers advises to trust the folder's code, which is not possible here."""
    text = str(error)
    if "trust_remote_code" in text:
        return "it needs code of the folder's own, which is never run"
    return f"{type(error).__name__}: {text}" if isinstance(error, RecursionError) else text


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences transformers: missing tensors, which it reports, are an error here that takes one line."""
    with MAKING_MODELS:
        level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if bar:
                logging.enable_progress_bar()


def experts_kernel(weights: Iterable[Size]) -> Literal["grouped_mm", "eager"]:
    """`weights`: shapes [E, out, in]. The grouped product is there on CPUs and accelerators, for every type, is repeatable, and
    adds the outputs of a token's experts in float32."""
    return "grouped_mm" if all(size % _ROW == 0 for shape in weights for size in shape[1:]) else "eager"


def choose_experts_kernel(model: PreTrainedModel) -> None:
    """Chooses the kernel, on a model with experts whose architecture knows more than one way."""
    weights = [weight.shape for name, weight in model.named_parameters() if ".experts." in name and weight.ndim == 3]
    if weights and model._can_set_experts_implementation():
        model.set_experts_implementation(experts_kernel(weights))

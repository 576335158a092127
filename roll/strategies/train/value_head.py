"""A causal LM whose head is one number: what is left of the model judges states instead of predicting tokens.

Everything that runs the causal LM runs it unchanged; where logits [.., V] came out, values [.., 1] do. On disk it is the model's
folder without its own head, and VALUE_HEAD beside it. The value models of trl and transformers' classifiers with one output are
read, too.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from roll.core.weights.folder_files import VALUE_HEAD, value_head
from roll.strategies.model_folder import load_model
from roll.strategies.train.checkpoint_files import write_model
from roll.strategies.train.head_output import changed_after_the_head
from roll.strategies.train.tensor_files import FilesOf


class ValueHead(nn.Linear):
    """Hidden states [.., H] of any type to values [.., 1], in float32; 0 everywhere before it is trained."""

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden, 1)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return nn.functional.linear(hidden.float(), self.weight.float(), self.bias.float())


def saved_head(path: Path, hidden: int) -> dict[str, Tensor] | None:
    """The folder's value head as the state of a `ValueHead`, None if it has none. Raises `ValueError` for another width."""
    found = value_head(path)
    if not found:
        return None
    saved = ValueHead(hidden).state_dict()
    for part, (file, name) in found.items():
        with safe_open(file, framework="pt") as opened:
            tensor: Tensor = opened.get_tensor(name)
        if tensor.shape != saved[part].shape:
            raise ValueError(f"{name} in '{file}' is {list(tensor.shape)}: of another model, or not of one value")
        saved[part] = tensor.float()
    return saved


def load_value_model(
    path: Path, dtype: torch.dtype, attn_implementation: str, state: dict[str, Tensor] | None = None
) -> PreTrainedModel:
    """Loads a value model from the folder of a causal LM, whose head is left out, or from the folder of a value model. `state`:
    see `load_model`.

    Raises:
        ValueError: the model changes what its head says, or the folder's value head is of another width.
    """
    model = load_model(path, dtype, attn_implementation, without_head=bool(value_head(path)), state=state)
    if (name := changed_after_the_head(model.config)) is not None:
        raise ValueError(f"model '{path}' changes the output of its head ({name} in config.json), and cannot be a critic")
    head = ValueHead(model.get_output_embeddings().weight.shape[1])
    if (saved := saved_head(path, head.in_features)) is not None:
        head.load_state_dict(saved)
    model.set_output_embeddings(head)
    return model


def write_value_model(
    path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, weights: dict[str, Tensor], files_of: FilesOf
) -> None:
    """`weights`: whole tensors, or a rank's share of them, under the names of the model's `state_dict`."""
    prefix = next(name for name, module in model.named_modules() if isinstance(module, ValueHead)) + "."
    write_model(path, model, tokenizer, {n: t for n, t in weights.items() if not n.startswith(prefix)}, files_of)
    head = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
    if head:
        save_file(head, path / VALUE_HEAD)

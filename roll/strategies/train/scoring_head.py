"""The head of a transformers causal LM, made to say log-probs and entropies of trained tokens instead of logits.

It stays where it is, so that FSDP2 and ZeRO gather its weights (perhaps the embeddings') around it as they do for logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from roll.strategies.train.head_logprobs import head_logprobs
from roll.strategies.train.layout import Layout
from roll.strategies.train.logprobs import EntropyMode

AFTER_THE_HEAD = ("final_logit_softcapping", "logit_scale", "logits_scaling", "logits_soft_cap", "lm_head_multiplier")
"""Keys of a model's config by which some families change what their head returns."""


def changed_after_the_head(model: PreTrainedModel) -> str | None:
    """The key in the model's config by which it changes what its head returns."""
    return next((name for name in AFTER_THE_HEAD if getattr(model.config, name, None) not in (None, 1)), None)


@dataclass(frozen=True, slots=True)
class _Asked:
    places: Tensor
    """[K], index among the hidden states [R·C, H] that the head gets."""
    targets: Tensor
    temperatures: Tensor
    entropy: EntropyMode


class ScoringHead:
    """Raises `ValueError` while it scores if the model changes what its head returns in a way that no key in its config tells."""

    def __init__(self, model: PreTrainedModel, head: nn.Linear) -> None:
        self._head, self._model_type = head, model.config.model_type
        self._asked: _Asked | None = None
        self._said: Tensor | None = None
        self._checked = False
        head.forward = self._forward  # type: ignore[assignment, method-assign]

    @classmethod
    def of(cls, model: PreTrainedModel) -> ScoringHead | None:
        """None where it would not be right: logits are changed after the head, or the head is more than a linear layer (LoRA)."""
        head = model.get_output_embeddings()
        plain = type(head) is nn.Linear and changed_after_the_head(model) is None
        return cls(model, head) if plain else None

    def scores(
        self, layout: Layout, targets: Tensor, temperatures: Tensor, entropy: EntropyMode, call: Callable[[], Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """[K] each: `row_logprobs` of the layout's trained tokens. `call`: runs the model, and returns what its head says."""
        self._asked = _Asked(layout.places, targets, temperatures, entropy)
        try:
            said = call()
            self._check(said)
        finally:
            self._asked = self._said = None
        if entropy == "none":
            return said[:, 0], None
        return said[:, 0], said[:, 1] if entropy == "differentiable" else said[:, 1].detach()

    def _forward(self, hidden: Tensor) -> Tensor:
        """[R, C, H] to [K, 1 or 2] while something is asked, else to logits."""
        asked = self._asked
        if asked is None:
            return nn.functional.linear(hidden, self._head.weight, self._head.bias)
        chosen = hidden.flatten(0, 1).index_select(0, asked.places)
        values = head_logprobs(chosen, self._head.weight, self._head.bias, asked.targets, asked.temperatures, asked.entropy)
        self._said = torch.stack([value for value in values if value is not None], 1)
        return self._said

    def _check(self, said: Tensor) -> None:
        if self._checked or not said.numel():
            return
        if self._said is None or not torch.equal(said.detach().nan_to_num(), self._said.detach().nan_to_num()):
            raise ValueError(f"models of type {self._model_type} change the logits of their head, and cannot be trained here")
        self._checked = True

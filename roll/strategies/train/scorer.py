"""A transformers causal LM asked about micro-batches: common prefixes once where it can, and log-probs and entropies of trained
tokens instead of logits.

The head that says them stays where it is, so that FSDP2 and ZeRO gather its weights (perhaps the embeddings') around it as they
do for logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel

from roll.core.algorithms.distillation import divergence
from roll.core.algorithms.loss import Metrics
from roll.core.data.kept_tokens import KeptSets
from roll.core.data.microbatches import Forest, plan_microbatches
from roll.core.data.token_batch import Padded, TokenBatch
from roll.strategies.model_folder import set_text_attention
from roll.strategies.routers import Routers
from roll.strategies.train.forest_attention import FOREST_SDPA, attends_by_forest, check_attended
from roll.strategies.train.head_output import changed_after_the_head
from roll.strategies.train.image_rows import IMAGES, looking, with_images
from roll.strategies.train.layout import Layout, divided, forest_row, padded_rows
from roll.strategies.train.logprobs import EntropyMode, columned, head_logprobs, row_logprobs
from roll.strategies.train.top_tokens import head_top, row_top
from roll.strategies.train.ulysses import check_model
from roll.strategies.vision.sight import Sight


@dataclass(frozen=True, slots=True)
class HeadInputs:
    places: Tensor
    """[K], index among the hidden states [R·C, H] that the head gets."""
    targets: Tensor
    """[K], or [K, n]."""
    temperatures: Tensor
    entropy: EntropyMode
    kept: KeptSets | None
    top: int = 0
    """The number of most probable tokens that are asked for."""


class ScoringHead:
    """A head that scores. Raises `ValueError` meanwhile if the model changes its output, and no key in its config tells it."""

    def __init__(self, model: PreTrainedModel, head: nn.Linear, fast: bool, fp32: bool) -> None:
        self._head, self._model_type, self._fast, self._fp32 = head, model.config.model_type, fast, fp32
        self._asked: HeadInputs | None = None
        self._said: Tensor | None = None
        self.top: tuple[Tensor, Tensor] | None = None
        """The most probable tokens, if they were asked for the last time."""
        self._checked = False
        head.forward = self._forward  # type: ignore[assignment, method-assign]

    @classmethod
    def of(cls, model: PreTrainedModel, fast: bool, fp32: bool) -> ScoringHead | None:
        """Returns None where it would be wrong: logits are changed after the head, or it is more than a linear layer (LoRA)."""
        head = model.get_output_embeddings()
        plain = type(head) is nn.Linear and changed_after_the_head(model.config) is None
        return cls(model, head, fast, fp32) if plain else None

    def scores(self, asked: HeadInputs, call: Callable[[], Tensor]) -> tuple[Tensor, Tensor | None]:
        """Returns `row_logprobs` of the tokens asked for. `call`: runs the model, and returns its head's output."""
        self._asked = asked
        try:
            said = call()
            self._check(said)
        finally:
            self._asked = self._said = None
        count = columned(asked.targets).shape[1]
        logprobs, entropies = said[:, :count].view(asked.targets.shape), said[:, -1]
        if asked.entropy == "none":
            return logprobs, None
        return logprobs, entropies if asked.entropy == "differentiable" else entropies.detach()

    def _forward(self, hidden: Tensor) -> Tensor:
        """[R, C, H] to [K, n] or, with entropies, [K, n + 1] while something is asked, else to logits."""
        asked = self._asked
        if asked is None:
            return nn.functional.linear(hidden, self._head.weight, self._head.bias)
        chosen = hidden.flatten(0, 1).index_select(0, asked.places)
        given = chosen, self._head.weight, self._head.bias
        how = asked.entropy, asked.kept
        values = head_logprobs(*given, asked.targets, asked.temperatures, *how, fast=self._fast, fp32=self._fp32)
        self._said = torch.cat([columned(value) for value in values if value is not None], 1)
        if asked.top:
            self.top = head_top(*given, asked.temperatures, asked.top, asked.kept, self._fp32)
        return self._said

    def _check(self, said: Tensor) -> None:
        if self._checked or not said.numel():
            return
        if self._said is None or not torch.equal(said.detach().nan_to_num(), self._said.detach().nan_to_num()):
            raise ValueError(f"models of type {self._model_type} change the logits of their head, and cannot be trained here")
        self._checked = True


Call = Callable[..., Any]
"""The model, or a back end's wrapper that calls it."""


class TokenScorer:
    def __init__(
        self,
        model: PreTrainedModel,
        fast: bool = False,
        packed: bool = False,
        sight: Sight | None = None,
        group: dist.ProcessGroup | None = None,
        fp32: bool = False,
    ) -> None:
        """Before a back end divides the model, whose attention and head it may change. `fast`: whether the head is compiled.
        `packed`: whether a forest is attended in one call. `sight`: of a model that sees. `group`: the ranks that divide the
        tokens of a micro-batch. `fp32`: logits are float32. Raises `ValueError` where they cannot be."""
        self._model, self._packed, self._sight, self._group = model, packed, sight, group
        self._rows: int = model.get_input_embeddings().weight.shape[0]
        """Tokens that the model has, before its weights are divided."""
        self.metrics: Metrics = {}
        """Metrics of the last forward."""
        if group is not None:
            check_model(model, group.size())
            assert sight is None, "refused before the start"
        self._forest = attends_by_forest(model)
        if self._forest:
            set_text_attention(model, FOREST_SDPA)
        self._head = ScoringHead.of(model, fast, fp32)
        if fp32 and self._head is None:
            raise ValueError(
                "head_dtype: fp32 needs logits that are a linear layer's alone, and this model has others: remove it"
            )
        self._routers = Routers(model)

    def plan(self, batch: TokenBatch, budget: int) -> list[list[int]]:
        """The samples of each micro-batch, which has at most `budget` tokens as the model computes them."""
        return Forest.of(batch.rows).microbatches(budget) if self._forest else plan_microbatches(batch.lengths.tolist(), budget)

    def layout(self, micro: Padded) -> Layout:
        layout = forest_row(micro, self._packed) if self._forest else padded_rows(micro)
        layout = layout if self._group is None else divided(layout, self._group)
        return layout if self._sight is None else with_images(layout, micro, self._sight)

    def logprobs(self, call: Call, micro: Padded, layout: Layout, entropy: EntropyMode) -> tuple[Tensor, Tensor | None]:
        """[B, T] each: log-probs of the trained tokens, and entropies; 0 elsewhere."""
        logprobs, entropies, _ = self._scores(call, micro, layout, micro.tokens[layout.trained], entropy)
        return layout.spread(logprobs, micro), None if entropies is None else layout.spread(entropies, micro)

    def with_divergence(
        self, call: Call, micro: Padded, layout: Layout, entropy: EntropyMode, beta: float | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """[B, T] each: `logprobs`, and the divergence from the teachers; None without a teacher's distribution. A token that the
        policy does not have belongs to the rest."""
        if beta is None or micro.teacher_top is None:
            return *self.logprobs(call, micro, layout, entropy), None
        ids, teacher = micro.teacher_top.dense()
        teacher = teacher.masked_fill(ids >= self._rows, -torch.inf)
        asked = torch.cat([micro.tokens[layout.trained][:, None], ids.clamp(max=self._rows - 1)], 1)
        found, entropies, _ = self._scores(call, micro, layout, asked, entropy)
        values = layout.spread(divergence(found[:, 1:], teacher, beta), micro)
        return layout.spread(found[:, 0], micro), None if entropies is None else layout.spread(entropies, micro), values

    def top(self, call: Call, micro: Padded, layout: Layout, top: int) -> tuple[Tensor, Tensor, Tensor]:
        """[K], [K, top], [K, top]: log-probs of the trained tokens, and ids and log-probs of the most probable ones in their
        place."""
        logprobs, _, most = self._scores(call, micro, layout, micro.tokens[layout.trained], "none", top)
        assert most is not None
        return logprobs, *most

    def _scores(
        self, call: Call, micro: Padded, layout: Layout, targets: Tensor, entropy: EntropyMode, top: int = 0
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, Tensor] | None]:
        """[K] or [K, n] log-probs of the targets, [K] entropies, and `row_top`."""
        temperatures, kept, scored = micro.temperatures[layout.trained[0]], micro.kept, layout.scored
        if scored is not None:
            targets, temperatures, kept = scored.of(targets), scored.of(temperatures), None if kept is None else scored.of(kept)
        if self._head is not None:
            asked = HeadInputs(layout.places, targets, temperatures, entropy, kept, top)
            found = self._head.scores(asked, lambda: self.said(call, layout))
            most = self._head.top
        else:
            logits = self.said(call, layout).flatten(0, 1).index_select(0, layout.places)
            found = row_logprobs(logits, targets, temperatures, entropy, kept)
            most = row_top(logits, temperatures, top, kept) if top else None
        if scored is None:
            return *found, most
        logprobs, entropies = found
        return (
            scored.whole(logprobs),
            None if entropies is None else scored.whole(entropies),
            (scored.whole(most[0]), scored.whole(most[1])) if top and most is not None else None,
        )

    def said(self, call: Call, layout: Layout) -> Tensor:
        """Returns [R, C, V], the head's output where it is asked for: logits unless the head is made to say something else."""
        self._routers.replay(None if layout.routes is None else layout.routes.flatten(0, 1))
        arguments = {"use_cache": False, "logits_to_keep": layout.columns, **layout.arguments}
        with looking(self._sight, arguments.pop(IMAGES, None)) as images:
            said: Tensor = call(input_ids=layout.tokens, **arguments, **images).logits
        if self._forest:
            check_attended(self._model, layout.arguments["forest"])
        self.metrics = self._routers.forward_made()
        return said

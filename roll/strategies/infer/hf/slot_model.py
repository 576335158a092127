"""A transformers causal LM with a cache of slots: logits of the next token for rows of slots.

Works for models whose logits are one linear layer over the hidden states and whose layers all attend fully (Qwen2, Qwen3,
Llama and their like); others are refused when the engine is built, not found wrong later.

Its attention is sdpa that reads grouped key-value heads in place when it decodes. transformers' own repeats keys and values for
every query head whenever there is a mask, a copy of the whole cache in every layer of every token step. With one query token the
query heads of a group can stand on the (free) query axis instead: [n, heads, 1, d] is [n, kv_heads, group, d], and nothing is
copied: on a CPU 9 times faster at 512 cached tokens.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from roll.core.data.routes import Routes
from roll.strategies.float32_head import HALVES, Float32Head
from roll.strategies.infer.hf.block_cache import BlockCache, BlockRows, block_attention
from roll.strategies.infer.hf.decode_graphs import Capture, DecodeGraphs, Inputs
from roll.strategies.infer.hf.slot_cache import SlotCache
from roll.strategies.infer.hf.slot_sight import SlotSight
from roll.strategies.model_folder import set_text_attention
from roll.strategies.routers import Routers
from roll.strategies.vision.sight import Sight

SLOT_SDPA = "slot_sdpa"
CLOSE = 0.1
"""Share of the largest logit by which another kernel of attention may round otherwise."""


def slot_sdpa_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    block_rows: BlockRows | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Output [n, tokens, heads, d] for query [n, heads, tokens, d], key and value [n, kv_heads, cached, d], mask [n, 1, 1,
    cached]. `block_rows`: where the rows' blocks are in the pool that key and value are."""
    rows, heads, tokens, width = query.shape
    if block_rows is not None:
        return block_attention(query, key, value, block_rows, scaling), None
    kv_heads = key.shape[1]
    if tokens > 1 or heads == kv_heads:
        whole: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return whole
    grouped = query.reshape(rows, kv_heads, heads // kv_heads, width)
    out = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
    )
    return out.reshape(rows, 1, heads, value.shape[-1]), None


AttentionInterface.register(SLOT_SDPA, slot_sdpa_attention)
AttentionMaskInterface.register(SLOT_SDPA, sdpa_mask)


class SlotModel:
    def __init__(
        self,
        model: nn.Module,
        slots: int,
        max_length: int,
        sight: Sight | None = None,
        capture: Capture | None = None,
        block: int = 0,
        cache_tokens: int | None = None,
        fp32_head: bool = False,
    ) -> None:
        """`sight`: of a model that sees. `capture`: makes graphs of the decode steps of all rows, unless the model sees; its
        weights then have to keep their places. `block`: the cache is in blocks of so many tokens, at most `cache_tokens` in all,
        if the model's attention reads them right; 0: in rows. `fp32_head`: logits are float32. `ValueError` if the model's
        architecture is not of the supported kind."""
        self.model = model.eval().requires_grad_(False)
        config: Any = model.config.get_text_config()  # type: ignore[operator, union-attr]
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        self.vocab_size: int = config.vocab_size
        self._trunk: Any = model.base_model
        self._head: Any = model.get_output_embeddings()  # type: ignore[operator]
        self._refuse_unsupported(config)
        self._wide_head = Float32Head(self._head) if fp32_head and self.dtype in HALVES else None
        self._logits: Callable[[Tensor], Tensor] = self._wide_head or self._head
        if config._attn_implementation == "sdpa":
            set_text_attention(self.model, SLOT_SDPA)
        graphs = capture is not None and sight is None
        self._routers: Routers | None = None
        """Asked after each forward, once somebody wants to know what they chose."""
        self._graphs: DecodeGraphs | None = None
        self._seen: SlotSight | None = None
        layers: int = config.num_hidden_layers
        self.slots = slots if cache_tokens is None else max(1, min(slots, cache_tokens // max_length))
        self.cache = SlotCache(self.slots + graphs, max_length, layers)
        if block and sight is None and config._attn_implementation == SLOT_SDPA:
            self._try(BlockCache(slots, max_length, layers, self.device, block, cache_tokens))
        if graphs and capture:
            self._graphs = DecodeGraphs(self.slots, self.device, self._padded_step, capture)
        self._seen = None if sight is None else SlotSight(sight, self.cache)

    @torch.inference_mode()
    def _try(self, blocks: BlockCache) -> None:
        """Takes this cache if a token step with it equals a forward without any; else logs the reason."""
        rows, self.cache = self.cache, blocks
        probe = torch.tensor([[0, 1, 1]], device=self.device)
        expected = self._logits(self._trunk(probe, use_cache=False).last_hidden_state[:, -1])
        try:
            blocks.own([(0, 0, 3)])
            self.forward_contexts(0, [(0, 1)])
            off, largest = float((self.forward_tokens(0, [1], [2]) - expected).abs().max()), float(expected.abs().max())
            reason = "" if off <= CLOSE * largest else f"logits differ by {off:.2g}, of at most {largest:.2g}"
        except (RuntimeError, ValueError, TypeError) as error:  # a kernel, or a model that does not know its argument
            reason = " ".join(str(error).split()[:60])
        blocks.free()
        if not reason:
            self.slots = blocks.slots
        else:
            self.cache = rows
            logging.getLogger(__name__).warning("the KV cache is in rows of the longest, not in blocks: %s", reason)

    def record_routes(self) -> bool:
        """From now on the cache knows the experts of each token; whether it does not yet. `ValueError` for a model without."""
        if self._routers is not None:
            return False
        routers = Routers(self.model)
        routers.record()
        self._routers, self._graphs = routers, None  # what routers say is read after each forward
        return True

    def routes(self, slot: int, start: int, stop: int) -> Routes:
        """The experts of the slot's cached tokens from `start` to `stop`."""
        assert self.cache.routes is not None
        return Routes(self.cache.of_slot(self.cache.routes, slot, start, stop).cpu().numpy().copy())

    def compute(self, first: int, contexts: list[tuple[tuple[int, ...], int]]) -> list[Tensor]:
        """Logits [vocabulary] after each context, of which so many tokens are in its slot already (the rests ascend in length),
        for the slots from `first` on. In batches in which none is padded to more than twice its length: episodes at different
        turns would else all pay for the longest."""
        computed: list[Tensor] = []
        while contexts:
            shortest = len(contexts[0][0]) - contexts[0][1]
            alike = sum(len(context) - start <= 2 * shortest for context, start in contexts)
            tokens, starts = ([*part] for part in zip(*contexts[:alike], strict=True))
            at = first + len(computed)
            computed += self.continue_contexts(at, tokens, starts) if any(starts) else self.forward_contexts(at, tokens)
            contexts = contexts[alike:]
        return computed

    def forward_contexts(self, first: int, contexts: list[tuple[int, ...]]) -> Tensor:
        """Logits [m, vocabulary] that follow each context, computed in one right-padded batch for the slots from `first` on."""
        lengths = [len(context) for context in contexts]
        width = max(lengths)
        self.cache.begin_prefill(first, len(contexts), width)
        hidden = self._hidden_of(contexts, torch.arange(width, device=self.device).expand(len(contexts), width), None)
        last = torch.tensor(lengths, device=self.device) - 1
        logits: Tensor = self._logits(hidden[torch.arange(len(contexts), device=self.device), last])
        return logits

    def continue_contexts(self, first: int, contexts: list[tuple[int, ...]], starts: list[int]) -> Tensor:
        """`forward_contexts` for slots that hold the first `starts` tokens of each context already."""
        lengths = [len(context) - start for context, start in zip(contexts, starts, strict=True)]
        longest, width = max(lengths), max(map(len, contexts)) + 1
        # Padding is written behind the context, where the first sampled token will be.
        last = torch.tensor(lengths, device=self.device)
        at = torch.minimum(torch.arange(longest, device=self.device), last[:, None])
        positions = at + torch.tensor(starts, device=self.device)[:, None]
        beyond = torch.arange(width, device=self.device) > positions[:, :, None]
        self.cache.begin_continuation(first, positions, width)
        hidden = self._hidden_of(contexts, positions, self._additive(beyond)[:, None])
        logits: Tensor = self._logits(hidden[torch.arange(len(contexts), device=self.device), last - 1])
        return logits

    def forward_tokens(self, first: int, tokens: list[int], positions: list[int]) -> Tensor:
        """Logits [n, vocabulary] that follow one more token, at its position, for each slot from `first` on."""
        width = max(positions) + 1
        if self._graphs is not None and first == 0:
            self.cache.reserve(width)
            hidden = self._graphs(tokens, positions, self.cache.reads(width), self.cache.capacity)
            if hidden is not None:
                return self._logits(hidden)
        ids, at = torch.tensor([tokens, positions], device=self.device)
        mask = None
        if min(positions) + 1 < width:
            mask = self._additive(torch.arange(width, device=self.device) > at[:, None])[:, None, None]
        self.cache.begin_continuation(first, at[:, None], width)
        places = at[:, None] if self._seen is None else self._seen.next(first, at)
        logits: Tensor = self._logits(self._hidden(ids[:, None], places, mask)[:, 0])
        return logits

    def weights_changed(self) -> None:
        if self._wide_head is not None:
            self._wide_head.renew()

    def free(self) -> None:
        """Gives the cache's memory back, that of graphs, and that of the head's copy."""
        self.cache.free()
        if self._wide_head is not None:
            self._wide_head.free()
        if self._graphs is not None:
            self._graphs.clear()

    def replay(self, slot: int, prompt: tuple[int, ...], response: tuple[int, ...]) -> Tensor:
        """Logits [vocabulary] after prompt and response, computed alone and as a first run does it: the prompt in one go, then
        token by token. Bitwise equal to that run's, which one forward over both is not."""
        logits = self.forward_contexts(slot, [prompt])
        for position, token in enumerate(response, len(prompt)):
            logits = self.forward_tokens(slot, [token], [position])
        return logits[0]

    def _hidden_of(self, contexts: list[tuple[int, ...]], at: Tensor, mask: Tensor | None) -> Tensor:
        """`at`: [m, tokens] which tokens of each context the forward holds; behind the last of them is padding."""
        width = max(map(len, contexts)) + 1
        padded = torch.tensor([(*context, *(0,) * (width - len(context))) for context in contexts])
        if self._seen is None:
            return self._hidden(padded.to(self.device).gather(1, at), at, mask)
        with self._seen.contexts(padded, [*map(len, contexts)], at) as (ids, positions, images):
            return self._hidden(ids, positions, mask, **images)

    def _padded_step(self, inputs: Inputs, width: int) -> Tensor:
        """Hidden states [rows, hidden] of a decode step as a graph has it: all that changes is read from `inputs`."""
        at = inputs.positions[:, None]
        self.cache.begin_rows(inputs.slots, at, width)
        beyond = torch.arange(width, device=self.device) > at
        return self._hidden(inputs.tokens[:, None], at, self._additive(beyond)[:, None, None])[:, 0]

    def _hidden(self, ids: Tensor, positions: Tensor, mask: Tensor | None, **images: Tensor) -> Tensor:
        given = {"input_ids": ids, "position_ids": positions, "attention_mask": mask, **images}
        out = self._trunk(**given, past_key_values=self.cache, use_cache=True, **self.cache.for_attention)
        if self._routers is not None:
            self.cache.store_routes(self._routers.taken())
        hidden: Tensor = out.last_hidden_state
        return hidden

    def _additive(self, beyond: Tensor) -> Tensor:
        """Additive and of the model's type: sdpa would convert a boolean mask again in every layer."""
        return torch.zeros(beyond.shape, dtype=self.dtype, device=self.device).masked_fill_(beyond, -math.inf)

    def _refuse_unsupported(self, config: Any) -> None:
        if config._attn_implementation not in ("sdpa", "eager", SLOT_SDPA):
            raise ValueError(f"attention {config._attn_implementation!r} takes no mask per row; use 'sdpa' or 'eager'")
        if others := set(getattr(config, "layer_types", None) or ()) - {"full_attention"}:
            raise ValueError(f"only full attention layers are supported, the model has {sorted(others)}")
        probe = torch.tensor([[0, 1]], device=self.device)
        with torch.inference_mode():
            expected = self.model(probe, use_cache=False).logits
            if not torch.isfinite(expected).all():
                raise ValueError("the model's logits are not finite: its weights hold NaN, as after training that diverged")
            if not torch.equal(expected, self._head(self._trunk(probe, use_cache=False).last_hidden_state)):
                raise ValueError(f"{type(self.model).__name__} does more to its logits than a linear output layer")

"""A transformers causal LM with a `SlotCache`: logits of the next token for rows of slots.

Works for models whose logits are one linear layer over the hidden states and whose layers all attend fully (Qwen2, Qwen3,
Llama and their like); others are refused when the engine is built, not found wrong later.

Its attention is sdpa that reads grouped key-value heads in place when it decodes. transformers' own repeats keys and values for
every query head whenever there is a mask, a copy of the whole cache in every layer of every token step. With one query token the
query heads of a group can stand on the (free) query axis instead: [n, heads, 1, d] is [n, kv_heads, group, d], and nothing is
copied: on a CPU 9 times faster at 512 cached tokens.

`SlotCache` has one slot per running request, for continuous batching. Each layer holds `keys` and `values` of shape [slots,
kv_heads, capacity, head_dim]. The rows in use are always 0 .. n-1, so attention reads the view `[:n, :, :width]` and nothing is
gathered or concatenated. Every row writes at its own position. Invariant: what lies beyond a row's length is finite, so a mask of
-inf removes it entirely.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from roll.core.configs.arguments import KV_GRANULE
from roll.core.data.routes import Routes
from roll.strategies.infer.hf.slot_sight import SlotSight
from roll.strategies.model_folder import set_text_attention
from roll.strategies.routers import Routers
from roll.strategies.vision.sight import Sight


class SlotCache(Cache):  # type: ignore[misc]
    """What the model sees as `past_key_values`. `begin_prefill` or `begin_continuation` says what the next forward will write."""

    def __init__(self, slots: int, max_length: int, num_layers: int) -> None:
        self.slots = slots
        self.max_length = max_length
        self.capacity = 0
        self.start = 0
        """First row of the forward under way, or about to start."""
        self.count = 0
        self.width = 0
        """Tokens of KV that attention reads."""
        self.write_index: tuple[Any, ...] = ()
        """Where in [slots, kv_heads, capacity, head_dim] the new states go."""
        self.prefilling = False
        self.routes: Tensor | None = None
        """[slots, capacity, layers, top_k] the experts of each cached token; None while nobody asks for them."""
        self.reach: Tensor | None = None
        """[slots, capacity] the largest position up to each cached token; None where it is the token's own."""
        self.slot_layers = [SlotLayer(self) for _ in range(num_layers)]
        super().__init__(layers=list(self.slot_layers))

    def begin_prefill(self, start: int, count: int, width: int) -> None:
        """The next forward holds `count` whole (right-padded) sequences of `width` tokens for the rows from `start` on."""
        self._reserve(width)
        self.start, self.count, self.width, self.prefilling = start, count, width, True
        self.write_index = (slice(start, start + count), slice(None), slice(0, width))

    def begin_continuation(self, start: int, positions: Tensor, width: int) -> None:
        """The next forward holds tokens for each row from `start` on, at `positions` [count, tokens] (all < `width`)."""
        self._reserve(width)
        count = len(positions)
        self.start, self.count, self.width, self.prefilling = start, count, width, False
        rows = torch.arange(start, start + count, device=positions.device)
        self.write_index = (rows[:, None], slice(None), positions)

    def read(self, row: int, length: int) -> list[Tensor]:
        """A copy of its first `length` tokens, for `write`."""
        return [states[:length].clone() for states in self._row(row)]

    def write(self, row: int, copied: Sequence[Tensor]) -> None:
        for states, of_row in zip(self._row(row), copied, strict=True):
            states[: len(of_row)] = of_row

    def swap(self, first: int, second: int, lengths: tuple[int, int]) -> None:
        """Row `first` becomes row `second` and the other way round, as long as they are."""
        kept = self.read(first, lengths[0])
        self.copy(second, first, lengths[1])
        self.write(second, kept)

    def copy(self, source: int, target: int, length: int) -> None:
        """Row `target` becomes row `source` (its first `length` tokens)."""
        for of_target, of_source in zip(self._row(target), self._row(source), strict=True):
            of_target[:length] = of_source[:length]

    def _row(self, row: int) -> list[Tensor]:
        """Views [capacity, ...] of all that it has."""
        held = [states[row].transpose(0, 1) for layer in self.slot_layers for states in layer.held]
        return [*held, *(each[row] for each in (self.routes, self.reach) if each is not None)]

    def store_routes(self, chosen: Tensor) -> None:
        """Of the forward that was made: [tokens, layers, top_k]."""
        self.routes = self._stored(self.routes, chosen, chosen.shape[1:])

    def store_reach(self, largest: Tensor) -> None:
        """Of the forward that is to be made: [rows, tokens]."""
        self.reach = self._stored(self.reach, largest, torch.Size())

    def _stored(self, held: Tensor | None, values: Tensor, shape: torch.Size) -> Tensor:
        """What is held of each cached token, with the values of those that the forward writes."""
        if held is None or held.shape[1] < self.capacity:
            before, held = held, values.new_zeros(self.slots, self.capacity, *shape)
            if before is not None:
                held[:, : before.shape[1]] = before
        rows, _, tokens = self.write_index
        held[rows, tokens] = values.view(held[rows, tokens].shape)
        return held

    def free(self) -> None:
        """Gives the memory back; the next forward allocates again."""
        self.capacity = 0
        self.routes = self.reach = None
        for layer in self.slot_layers:
            layer.keys = layer.values = None
            layer.is_initialized = False

    @property
    def nbytes(self) -> int:
        return sum(states.numel() * states.element_size() for layer in self.slot_layers for states in layer.held)

    def _reserve(self, width: int) -> None:
        """Doubles the capacity until `width` tokens fit."""
        if width > self.max_length:
            raise ValueError(f"{width} tokens do not fit into max_length={self.max_length}")
        if width <= self.capacity:
            return
        doubled = max(width, 2 * self.capacity, 4 * KV_GRANULE)
        self.capacity = -(-min(doubled, self.max_length) // KV_GRANULE) * KV_GRANULE
        for layer in self.slot_layers:
            layer.grow()


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's share of a `SlotCache`; allocated when the model first shows the shape and type of its states."""

    is_sliding = False
    keys: Tensor | None
    values: Tensor | None

    def __init__(self, owner: SlotCache) -> None:
        super().__init__()
        self.owner = owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys = self._zeros(key_states)
        self.values = self._zeros(value_states)
        self.is_initialized = True

    @property
    def held(self) -> tuple[Tensor, ...]:
        """Keys and values; nothing before the first forward."""
        return () if self.keys is None or self.values is None else (self.keys, self.values)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Stores the new states [count, kv_heads, tokens, head_dim] and returns those that attention reads."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        owner, (keys, values) = self.owner, self.held
        if owner.prefilling:
            keys[owner.write_index] = key_states
            values[owner.write_index] = value_states
            return key_states, value_states
        keys[owner.write_index] = key_states.transpose(1, 2)
        values[owner.write_index] = value_states.transpose(1, 2)
        rows = slice(owner.start, owner.start + owner.count)
        return keys[rows, :, : owner.width], values[rows, :, : owner.width]

    def grow(self) -> None:
        if self.is_initialized:
            self.keys, self.values = (self._grown(states) for states in self.held)

    def _grown(self, states: Tensor) -> Tensor:
        larger = self._zeros(states)
        larger[:, :, : states.shape[2]] = states
        return larger

    def _zeros(self, like: Tensor) -> Tensor:
        return like.new_zeros(self.owner.slots, like.shape[1], self.owner.capacity, like.shape[3])

    # What transformers asks to build a mask when none is given: a causal one over the new tokens (prefill), none (decode).
    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return (query_length if self.owner.prefilling else self.owner.width), 0

    def get_seq_length(self) -> int:
        return 0 if self.owner.prefilling else self.owner.width - 1

    def get_max_length(self) -> int:
        return self.owner.max_length


SLOT_SDPA = "slot_sdpa"


def slot_sdpa_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Output [n, tokens, heads, d] for query [n, heads, tokens, d], key and value [n, kv_heads, cached, d], mask [n, 1, 1,
    cached]."""
    rows, heads, tokens, width = query.shape
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
    def __init__(self, model: nn.Module, slots: int, max_length: int, sight: Sight | None = None) -> None:
        """`sight`: of a model that sees. `ValueError` if the model's architecture is not of the supported kind."""
        self.model = model.eval().requires_grad_(False)
        config: Any = model.config.get_text_config()  # type: ignore[operator, union-attr]
        parameter = next(model.parameters())
        self.device: torch.device = parameter.device
        self.dtype: torch.dtype = parameter.dtype
        self.vocab_size: int = config.vocab_size
        self._trunk: Any = model.base_model
        self._head: Any = model.get_output_embeddings()  # type: ignore[operator]
        self._refuse_unsupported(config)
        if config._attn_implementation == "sdpa":
            set_text_attention(self.model, SLOT_SDPA)
        self.cache = SlotCache(slots, max_length, config.num_hidden_layers)
        self._seen = None if sight is None else SlotSight(sight, self.cache)
        self._routers: Routers | None = None
        """Asked after each forward, once somebody wants to know what they chose."""

    def record_routes(self) -> bool:
        """From now on the cache knows the experts of each token; whether it does not yet. `ValueError` for a model without."""
        if self._routers is not None:
            return False
        routers = Routers(self.model)
        routers.record()
        self._routers = routers
        return True

    def routes(self, slot: int, start: int, stop: int) -> Routes:
        """The experts of the slot's cached tokens from `start` to `stop`."""
        assert self.cache.routes is not None
        return Routes(self.cache.routes[slot, start:stop].cpu().numpy().copy())

    def forward_contexts(self, first: int, contexts: list[tuple[int, ...]]) -> Tensor:
        """Logits [m, vocabulary] that follow each context, computed in one right-padded batch for the slots from `first` on."""
        lengths = [len(context) for context in contexts]
        width = max(lengths)
        self.cache.begin_prefill(first, len(contexts), width)
        hidden = self._hidden_of(contexts, torch.arange(width, device=self.device).expand(len(contexts), width), None)
        last = torch.tensor(lengths, device=self.device) - 1
        logits: Tensor = self._head(hidden[torch.arange(len(contexts), device=self.device), last])
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
        logits: Tensor = self._head(hidden[torch.arange(len(contexts), device=self.device), last - 1])
        return logits

    def forward_tokens(self, first: int, tokens: list[int], positions: list[int]) -> Tensor:
        """Logits [n, vocabulary] that follow one more token, at its position, for each slot from `first` on."""
        width = max(positions) + 1
        ids, at = torch.tensor([tokens, positions], device=self.device)
        mask = None
        if min(positions) + 1 < width:
            mask = self._additive(torch.arange(width, device=self.device) > at[:, None])[:, None, None]
        self.cache.begin_continuation(first, at[:, None], width)
        places = at[:, None] if self._seen is None else self._seen.next(first, at)
        logits: Tensor = self._head(self._hidden(ids[:, None], places, mask)[:, 0])
        return logits

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

    def _hidden(self, ids: Tensor, positions: Tensor, mask: Tensor | None, **images: Tensor) -> Tensor:
        given = {"input_ids": ids, "position_ids": positions, "attention_mask": mask, **images}
        out = self._trunk(**given, past_key_values=self.cache, use_cache=True)
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

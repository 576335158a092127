"""Bytes that a trainer, a frozen model or an engine needs on a device, from sizes alone. Pure.

Weights, gradients, moments and KV cache are exact; activations and the head are autograd's stored tensors and the live ones at
the peak of a micro-batch whose samples all have the full length (tests compare both with real models). Not counted: the
accelerator's context, the allocator's gaps, communication buffers, and an engine's short-lived tensors in its forward pass."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from roll.core.configs.arguments import KV_BLOCK, KV_GRANULE
from roll.core.configs.backend_arguments import DeepSpeedConfig
from roll.core.configs.sizes import BYTES, MIB, compute_dtype
from roll.core.configs.worker import WorkerConfig
from roll.core.data.microbatches import Forest
from roll.plan.model_shape import ModelShape
from roll.plan.vision_shape import VisionShape

FP32 = 4
PREFILL_TOKENS = 8192
"""Padded tokens that one prefill step of `hf_infer` may hold (a longer prompt goes alone): bounds its memory and duration."""
HEAD_LOGITS = {False: 1 << 21, True: 1 << 27}
"""Logits that a trainer computes at a time: on a CPU as many as caches hold, on an accelerator as many as keep it busy."""
LEAST_COLUMNS = 1024
"""Entries of the vocabulary that are computed at a time all the same, however many rows there are."""
LEAST_WIDTH = 64
"""Cached tokens that the narrowest graph of an engine's token step reads from rows."""
WORKSPACE = 32 * MIB
"""cuBLAS's workspace for the stream of captured graphs: torch's choice for Hopper (CublasHandlePool.cpp); 8 MiB before it."""
Attention = Literal["plain", "eager", "forest"]
"""forest: `roll.strategies.train.forest_attention`."""
Kept = Literal["all", "inputs", "none"]
"""Activations of blocks that are kept for the backward pass."""


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    bytes: int
    formula: str
    """Arithmetic of `bytes`, with its numbers."""


@dataclass(frozen=True, slots=True)
class Model:
    """`parameters` may come from the weights' headers; the shape's own count is the formula's."""

    shape: ModelShape
    parameters: int
    adapters: int | None = None
    """LoRA: number of trained parameters; all others are frozen."""
    adapts_head: bool = False
    """LoRA: True if the output projection has adapters, too."""
    sees: VisionShape | None = None
    frozen: int = 0
    """Parameters of the vision tower, where it alone is not trained."""

    @property
    def trained(self) -> int:
        return self.parameters - self.frozen if self.adapters is None else self.adapters

    @property
    def in_training(self) -> int:
        """Parameters in the number type of the trained ones."""
        return self.trained + self.frozen


@dataclass(frozen=True, slots=True)
class Microbatch:
    """The largest one of a pass: samples, and tokens of the longest."""

    rows: int
    sequence: int
    response: int
    repeated: int = 0
    """Tokens of prompts that are computed for another sample of the group: only their keys and values are copied."""

    @property
    def tokens(self) -> int:
        """Computed tokens."""
        return self.rows * self.sequence - self.repeated

    @property
    def predicted(self) -> int:
        return self.rows * self.response

    @property
    def asked(self) -> int:
        """Computed tokens of prompts; of episodes all, as nobody knows who writes them."""
        return self.tokens - self.predicted or self.tokens


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """Division of a model over the devices of a role."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    ulysses: int = 1
    """Devices that divide the tokens of a micro-batch, and in attention the heads."""
    shard_weights: bool = True
    """Over the data-parallel ranks: FSDP2, ZeRO-3."""
    shard_gradients: bool = True
    """FSDP2, ZeRO-2 and -3."""
    shard_optimizer: bool = True
    """FSDP2, ZeRO-1 to -3, Megatron's distributed optimizer."""
    regathered: bool = True
    """Sharded layers are gathered one after the other and freed again; False: gathered ones stay until the step ends."""
    masters: bool = False
    """The optimiser has float32 weights of its own (DeepSpeed, Megatron in bf16, one rank of FSDP2 in bf16), and the model
    computes in the weights it has; else the weights are the masters, and copies of them compute."""
    sequence_parallel: bool = True
    """Tensor-parallel ranks divide norms and residuals, too; else each has all of them."""
    optimizer_on_host: bool = False
    weights_on_host: bool = False

    @property
    def model(self) -> int:
        """Devices that one copy of the model is cut over."""
        return self.tensor * self.pipeline

    def cast(self, element: int) -> bool:
        """Returns True if layers compute in narrower copies of their weights, which FSDP2 makes as it gathers them."""
        return element < FP32 and not self.masters


def microbatch(budget: int, rows_at_most: int, sequence: int, response: int, group: int = 1) -> Microbatch:
    """Samples of full length that fit into `budget` computed tokens, at least one. `group`: samples that share a prompt, which is
    computed once."""
    prompt = sequence - response
    rows = len(Forest.of_groups(rows_at_most, group, prompt, response).microbatches(budget)[0])
    return Microbatch(rows, sequence, response, prompt * (rows - math.ceil(rows / group)))


def trained_weights(model: Model, layout: ModelLayout, element: int) -> list[Part]:
    """Weights, float32 gradients, and AdamW's state: two moments and, with `masters`, float32 weights."""
    trained, over = model.trained, layout.model
    weights = over * (layout.data if layout.shard_weights else 1)
    kept = 3 * FP32 if layout.masters else 2 * FP32
    parts = []
    if model.adapters is not None:
        parts.append(_share("frozen weights", element, model.parameters, weights))
    if not layout.weights_on_host:
        parts.append(_share("weights", element if layout.masters else FP32, model.in_training, weights))
    parts.append(_share("gradients", FP32, trained, over * (layout.data if layout.shard_gradients else 1)))
    if not layout.optimizer_on_host:
        parts.append(_share("optimiser", kept, trained, over * (layout.data if layout.shard_optimizer else 1)))
    if layout.shard_weights and (layout.data > 1 or layout.cast(element)):
        parts.append(_gathered(model, layout, element, 1 if model.adapters is not None else 2))
    return parts


def snapshot(model: Model, element: int) -> Part:
    """Copy from which a checkpoint is written while training goes on: float32 masters and two moments, and the frozen weights."""
    each = 3 * FP32
    formula = f"{each} B × {model.trained:,} parameters"
    width, count = (FP32, model.frozen) if model.adapters is None else (element, model.parameters)
    frozen = width * count
    if frozen:
        formula += f" + {width} B × {count:,} frozen"
    return Part("snapshot", each * model.trained + frozen, formula)


def frozen_weights(model: Model, layout: ModelLayout, element: int) -> list[Part]:
    """Weights in the type that the layers compute in, and the layers gathered at a time."""
    weights = _share("weights", element, model.parameters, layout.model * (layout.data if layout.shard_weights else 1))
    return [weights, _gathered(model, layout, element, 1)] if layout.shard_weights and layout.data > 1 else [weights]


def _share(name: str, element: int, parameters: int, ranks: int) -> Part:
    shown = f" / {ranks}" if ranks > 1 else ""
    return Part(name, -(-element * parameters // ranks), f"{element} B × {parameters:,} parameters{shown}")


def _gathered(model: Model, layout: ModelLayout, element: int, copies: int) -> Part:
    """Embeddings and two layers at a time (one computes, the next arrives), `copies` times: weights, and their gradients."""
    shape = model.shape
    outer, layer = shape.outer_parameters, shape.layer_parameters
    at_once = outer + 2 * layer
    if layout.regathered:
        formula = f"{copies} × {element} B × ({outer:,} of the embeddings + 2 × {layer:,} of a layer)"
        return Part("gathered", copies * element * at_once // layout.model, formula)
    total = element * (model.parameters + (copies - 1) * at_once) // layout.model
    return Part("gathered", total, f"{element} B × {model.parameters:,} parameters, kept until the step ends")


def activations(
    model: Model, layout: ModelLayout, micro: Microbatch, element: int, recompute: bool, attention: Attention
) -> Part:
    """Activations that autograd keeps for the backward pass, with s tokens, hidden h, queries q, keys kv, MLP f, n heads:

        float32            s·(24h + 8q + 8kv + 16f + 8 + 4n)          a layer
        bf16               s·(16h + 4q + 4kv + 8f + 8 + 4n)           a layer

    Norms of query and key heads add s·(8 or 6)·(q + kv); eager attention adds s·sequence·n·(4 or 6). Where prompts are shared
    attention's output is copied, and keys and values of a prompt for each sample. Recomputing keeps the input of each layer, and
    one layer at a time in full."""
    shape, ranks = model.shape, layout.ulysses
    s = -(-micro.tokens // ranks)
    per_token = layer_bytes(shape, micro.sequence, element, attention)
    layers = -(-shape.layers // layout.pipeline)
    # 1F1B holds as many micro-batches on the first stage as there are stages: all layers' worth again.
    held = layers * layout.pipeline
    whole = 0 if layout.sequence_parallel else norm_bytes(shape, element)
    # Heads of keys that the ranks of Ulysses do not divide are repeated until they do.
    more = ranks // math.gcd(shape.kv_heads, ranks)
    copied = 2 * shape.kv_dim * element * (more * micro.repeated // ranks + (more - 1) * s)
    full = s * (whole + (per_token - whole) // layout.tensor) + copied
    if not recompute:
        return Part("activations", held * full, f"{s:,} tokens × {full // s:,} B × {held} layers")
    kept = s * shape.hidden * element // (layout.tensor if layout.sequence_parallel else 1)
    formula = f"{s:,} tokens × ({held} layers' inputs + {full // s:,} B of one recomputed layer)"
    return Part("activations", held * kept + full, formula)


def images(sees: VisionShape, places: int, element: int, kept: Kept) -> Part:
    """Activations of the vision tower, for images of so many token places: those of all its blocks for the backward pass; their
    inputs, and one block in full at a time; or, where nothing of it is trained, at most that block."""
    patches = places * sees.patches
    each = sees.outer_bytes(element) + sees.block_bytes(element) * (sees.blocks if kept == "all" else 1)
    each += sees.blocks * sees.hidden * element if kept == "inputs" else 0
    return Part("images", patches * each, f"{places:,} places × {sees.patches} patches × {each:,} B")


def layer_bytes(shape: ModelShape, sequence: int, element: int, attention: Attention) -> int:
    """Bytes of activations of one token in one layer; see `activations`."""
    q, kv, f = shape.query_dim, shape.kv_dim, shape.intermediate
    per_token = norm_bytes(shape, element) + 2 * element * (q + kv) + 4 * element * f + 8 + 4 * shape.heads
    if shape.qk_norm:
        per_token += (8 if element == FP32 else 6) * (q + kv) + 4 * (shape.heads + shape.kv_heads)
    if attention == "eager":
        return per_token + sequence * shape.heads * (4 if element == FP32 else 6)
    return per_token + (element * q if attention == "forest" else 0)


def norm_bytes(shape: ModelShape, element: int) -> int:
    """The part of `layer_bytes` that stands between attention and MLP."""
    return shape.hidden * (24 if element == FP32 else 16)


def head(
    model: Model,
    layout: ModelLayout,
    micro: Microbatch,
    element: int,
    train: bool,
    accelerator: bool = False,
    fp32: bool = False,
) -> Part:
    """Live tensors at the peak, while the head runs a part of the vocabulary at a time: the states that predict, and logits and
    probabilities of the part in float32, beside the logits in bf16. Training adds the states' gradient. Adapters of the head need
    its logits whole. Compiled, the part needs half of it or less. Ulysses: of the device with most tokens of responses. With
    `fp32` no logits are in bf16; a CPU converts the part's weights instead."""
    shape, vocabulary = model.shape, model.shape.vocab // layout.tensor
    rounded, predicted = element if element < FP32 else 0, min(micro.predicted, -(-micro.tokens // layout.ulysses))
    if model.adapts_head:
        each, width = element + 3 * FP32 + (2 * FP32 if train else 0), vocabulary
    else:
        each, width = 2 * FP32 + rounded * (not fp32), min(head_columns(predicted, accelerator), vocabulary)
    states = shape.hidden * ((2 * element + FP32 + rounded) if train else element)
    formula = f"{predicted:,} response tokens × ({width:,} of the vocabulary × {each} B + {states:,} B)"
    # The converted weights are gone when there are probabilities.
    converted = FP32 * max(0, shape.hidden - predicted) * width if fp32 and rounded and not accelerator else 0
    formula += f" + {converted:,} B of converted weights" if converted else ""
    return Part("head", predicted * (width * each + states) + converted, formula)


def engine_head(model: Model) -> Part:
    """An engine's output layer in float32, beside that of its weights."""
    vocabulary, hidden = model.shape.vocab, model.shape.hidden
    return Part("float32 head", FP32 * vocabulary * hidden, f"{FP32} B × {vocabulary:,} × {hidden:,}")


def head_columns(rows: int, accelerator: bool) -> int:
    """Entries of the vocabulary that the head of a trainer computes at a time."""
    return max(LEAST_COLUMNS, HEAD_LOGITS[accelerator] // max(rows, 1))


def kv_cache(model: Model, requests: int, sequence: int, element: int, most: int | None = None) -> Part:
    """KV cache of an engine that keeps a slot of full length for each running request. `most`: tokens that it may hold."""
    if most is not None:
        requests = max(1, min(requests, most // sequence))
    tokens = -(-sequence // KV_GRANULE) * KV_GRANULE
    each = model.shape.kv_bytes(element)
    return Part("KV cache", requests * tokens * each, f"{requests:,} requests × {tokens:,} tokens × {each:,} B")


def kv_blocks(model: Model, requests: int, sequence: int, element: int, most: int | None = None) -> Part:
    """KV cache in blocks, when all requests have their full length, or it holds `most` tokens; and the block of padding."""
    longest, each = -(-sequence // KV_BLOCK), model.shape.kv_bytes(element)
    count = requests * longest if most is None else max(longest, min(most // KV_BLOCK, requests * longest))
    formula = f"at most {count + 1:,} blocks × {KV_BLOCK} tokens × {each:,} B"
    return Part("KV cache", (count + 1) * KV_BLOCK * each, formula)


def decode_graphs(model: Model, requests: int, sequence: int, element: int, blocks: bool) -> Part:
    """Graphs of an engine's token steps. They share their working memory: at most the activations that autograd would keep of one
    layer for the most rows, and cuBLAS's workspace. Each keeps its output. In rows there is a graph for each width, too."""
    sizes = {padded(rows, requests) for rows in range(1, requests + 1)}
    widths = 1 if blocks else len({padded(width, sequence, LEAST_WIDTH) for width in range(1, sequence + 1)})
    each, output = layer_bytes(model.shape, 1, element, "plain"), model.shape.hidden * element
    rows, count = sum(sizes) * widths, len(sizes) * widths
    formula = f"{requests:,} rows × {each:,} B, {WORKSPACE // MIB} MiB, and {rows:,} outputs of {count} graphs × {output:,} B"
    return Part("graphs", requests * each + WORKSPACE + rows * output, formula)


def padded(count: int, most: int, least: int = 1) -> int:
    """Fills `count` up to 1, 1.5, 2, 3, 4, 6, 8, ... times `least`: by less than a half; never beyond `most`."""
    size = least
    while size < count:
        size = size * 3 // 2 if size & (size - 1) == 0 and size > 1 else 1 << size.bit_length()
    return min(size, most)


def engine_weights(model: Model, element: int, shadow: bool, tensor: int = 1, fp8: bool = False) -> list[Part]:
    """Serving weights and, with `shadow`, the second set into which the next version is received while they generate. `fp8`: a
    byte a number within layers."""
    if fp8:
        outer = min(model.shape.outer_parameters, model.parameters)
        layers, shown = model.parameters - outer, f" / {tensor}" if tensor > 1 else ""
        formula = f"(1 B × {layers:,} + {element} B × {outer:,} parameters){shown}"
        return [Part("weights", -(-(layers + element * outer) // tensor), formula)]
    parts = [_share("weights", element, model.parameters, tensor)]
    return [*parts, _share("next weights", element, model.parameters, tensor)] if shadow else parts


def total(parts: Sequence[Part]) -> int:
    return sum(part.bytes for part in parts)


def element_bytes(worker: WorkerConfig, accelerators: bool) -> int:
    """Returns the bytes of one number in the role's number type."""
    options = worker.strategy_args.options
    dtype = worker.model_args.dtype
    if isinstance(options, DeepSpeedConfig):
        dtype = options.computed_in(dtype)
    return BYTES[compute_dtype(dtype, accelerators)]


def cpu_cache_tokens(given: Mapping[str, Any], requests: int, sequence: int) -> int:
    """Returns the capacity in tokens of vLLM's KV cache on a CPU, unless its size is given: all running requests at full length.
    Requests take whole blocks, and one more block is vLLM's null block."""
    asked = given.get("block_size")
    block = max(128, asked) if type(asked) is int else 128
    return (requests * -(-sequence // block) + 1) * block

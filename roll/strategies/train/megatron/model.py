"""A Megatron GPT model that computes what the Hugging Face model does, from Megatron-core's own layers ("local spec").

Five parts differ from Megatron's: attention is torch's (the local one keeps [B, H, T, T] scores), RMSNorm works with sequence
parallelism (the local one refuses), the router of experts and their products need no Transformer Engine, and the last stage
computes log-probs of trained tokens, not logits. The same modules run on CPUs and on GPUs, with or without Transformer Engine,
so their numbers agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor, nn
from torch.nn.functional import grouped_mm
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from roll.strategies.model_folder import experts_kernel
from roll.strategies.train.logprobs import head_logprobs
from roll.strategies.train.megatron.context import Predictors, attention_over_ranks
from roll.strategies.train.megatron.convert import padded_vocab
from roll.strategies.train.megatron.supported import ParallelLayout, check_model, mixture_layers, rope_type


class RMSNorm(nn.RMSNorm):
    """RMSNorm whose weight is marked if its gradient must be summed over the tensor-parallel ranks, each of which sees some
    tokens."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **_: object) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


class CausalAttention(nn.Module):
    """softmax(q kᵀ / √d) v over preceding tokens, by torch's fused kernels. Padding is on the right: no token sees it."""

    def __init__(self, config: TransformerConfig, **_: object) -> None:
        super().__init__()
        self._grouped = config.num_query_groups != config.num_attention_heads
        self._context_group = parallel_state.get_context_parallel_group()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> Tensor:
        """[T, B, H, D], [T, B, G, D], [T, B, G, D] -> [T, B, H·D]."""
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        if self._context_group.size() > 1:
            out = attention_over_ranks(q, k, v, self._context_group)
        else:
            out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self._grouped)
        return out.permute(2, 0, 1, 3).flatten(2)


class ExpertTopKRouter(TopKRouter):  # type: ignore[misc]
    """Computes the router's logits in float32 from weights of any type. Megatron's own product needs Transformer Engine."""

    @property
    def top_k(self) -> int:
        return int(self.topk)

    def gating(self, input: Tensor) -> Tensor:
        """[.., H] -> [.., E] float32."""
        return nn.functional.linear(input.float(), self.weight.float())


class ModelStage(GPTModel):  # type: ignore[misc]
    """One pipeline stage, for this rank's share of the sequences [B, T]. The last stage returns its head's output at the R
    positions that `loss_mask` names, the others [T, B, H] for the next stage."""

    fast = False
    """True if the head's work on logits is compiled."""
    fp32_head = False
    """True if logits are float32."""

    def __init__(self, config: TransformerConfig, hf_config: Any, layers: TransformerBlockSubmodules, tied: bool) -> None:
        super().__init__(
            config,
            layers,
            vocab_size=padded_vocab(hf_config.vocab_size, config.tensor_model_parallel_size),
            max_sequence_length=hf_config.max_position_embeddings,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
            share_embeddings_and_output_weights=tied,
            position_embedding_type="rope",
        )
        self.rotary_pos_emb.inv_freq = _inverse_frequencies(hf_config)

    def head(self, hidden: Tensor, at: Predictors) -> Tensor:
        """[R, H] -> [R, ..]"""
        raise NotImplementedError

    def _postprocess(self, hidden_states: Tensor, *_: object, loss_mask: Predictors, **__: object) -> Tensor:
        if not self.post_process:
            return hidden_states
        if self.config.sequence_parallel:
            hidden_states = gather_from_sequence_parallel_region(hidden_states, tensor_parallel_output_grad=False)
        chosen = hidden_states.flatten(0, 1).index_select(0, loss_mask.own * hidden_states.shape[1] + loss_mask.rows)
        return self.head(chosen, loss_mask)


class PolicyModel(ModelStage):
    """The last stage returns log-probs and, if they are asked for, entropies [R, 1 or 2], equal on all tensor-parallel ranks."""

    def __init__(self, config: TransformerConfig, hf_config: Any, layers: TransformerBlockSubmodules) -> None:
        super().__init__(config, hf_config, layers, bool(hf_config.tie_word_embeddings))
        columns = self.vocab_size // config.tensor_model_parallel_size
        self._first_column = columns * parallel_state.get_tensor_model_parallel_rank()
        self._columns = min(columns, hf_config.vocab_size - self._first_column)

    def setup_embeddings_and_output_layer(self) -> None:
        """The base class also copies a tied embedding from the first stage to the last; here both read it from the checkpoint."""
        if not self.share_embeddings_and_output_weights or self.config.pipeline_model_parallel_size == 1:
            super().setup_embeddings_and_output_layer()
        elif self.pre_process or self.post_process:
            weight = self.shared_embedding_or_output_weight()
            weight.is_embedding_or_output_parameter = True
            weight.shared_embedding = True  # its gradient is summed over both stages,
            weight.shared = not self.pre_process  # and counts once in the norm

    def head(self, hidden: Tensor, at: Predictors) -> Tensor:
        tied = self.share_embeddings_and_output_weights
        values = head_logprobs(
            hidden,
            self.shared_embedding_or_output_weight() if tied else self.output_layer.weight,
            None,
            at.targets,
            at.temperatures,
            at.entropy,
            at.kept,
            columns=self._columns,
            first_column=self._first_column,
            group=parallel_state.get_tensor_model_parallel_group(),
            fast=self.fast,
            fp32=self.fp32_head,
        )
        return torch.stack([value for value in values if value is not None], 1)


MakeStage = Callable[[TransformerConfig, Any, TransformerBlockSubmodules], ModelStage]
"""From the configuration, the model's `config.json` and the layers of this rank."""


def _leave(tensor: Tensor) -> Tensor:
    return tensor


_ALWAYS: dict[str, Any] = {
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "activation_func": nn.functional.silu,
    "add_bias_linear": False,
    # The ratio of two log-probs must come from the weights alone.
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    # Weights are read into the parameters right away. Initialisation stays on, for it marks how each is divided.
    "use_cpu_initialization": True,
    "init_method": _leave,
    "output_layer_init_method": _leave,
    "calculate_per_token_loss": True,
    "moe_token_dispatcher_type": "alltoall",  # takes unequal numbers of tokens; also without experts, for variable lengths
}


def transformer_config(
    hf_config: Any, dtype: torch.dtype, layout: ParallelLayout, sequence_parallel: bool = False, **chosen: Any
) -> TransformerConfig:
    """`chosen`: further fields of TransformerConfig."""
    check_model(hf_config, layout, sequence_parallel)
    return TransformerConfig(
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        context_parallel_size=layout.context,
        expert_model_parallel_size=layout.expert,
        expert_tensor_parallel_size=layout.expert_tensor,
        sequence_parallel=sequence_parallel,
        account_for_embedding_in_pipeline_split=layout.embedding_as_layer,
        account_for_loss_in_pipeline_split=layout.output_as_layer,
        num_layers=hf_config.num_hidden_layers,
        hidden_size=hf_config.hidden_size,
        num_attention_heads=hf_config.num_attention_heads,
        num_query_groups=hf_config.num_key_value_heads,
        kv_channels=getattr(hf_config, "head_dim", None) or hf_config.hidden_size // hf_config.num_attention_heads,
        ffn_hidden_size=hf_config.intermediate_size,
        layernorm_epsilon=hf_config.rms_norm_eps,
        add_qkv_bias=hf_config.model_type in ("qwen2", "qwen2_moe"),
        qk_layernorm=hf_config.model_type in ("qwen3", "qwen3_moe"),
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        fp16=dtype == torch.float16,
        **_ALWAYS,
        **(_mixture(hf_config) if any(mixture_layers(hf_config)) else {}),
        **chosen,
    )


def _mixture(hf_config: Any) -> dict[str, object]:
    """No token is dropped, and no loss balances the experts: the policy's loss is the same in every back end."""
    return {
        "num_moe_experts": hf_config.num_experts,
        "moe_layer_freq": [int(mixture) for mixture in mixture_layers(hf_config)],
        "moe_ffn_hidden_size": hf_config.moe_intermediate_size,
        "moe_shared_expert_intermediate_size": getattr(hf_config, "shared_expert_intermediate_size", None),
        "moe_shared_expert_gate": True,
        "moe_router_topk": hf_config.num_experts_per_tok,
        "moe_router_pre_softmax": not hf_config.norm_topk_prob,
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
    }


def build_stage(config: TransformerConfig, hf_config: object, make: MakeStage) -> ModelStage:
    """Builds the layers of this rank, on the CPU; their weights are not read yet."""
    kinds = {mixture: _layer(config, mixture) for mixture in set(mixture_layers(hf_config))}
    first = get_transformer_layer_offset(config)
    own = mixture_layers(hf_config)[first : first + get_num_layers_to_build(config)]
    layers = [kinds[mixture] for mixture in own]
    return make(config, hf_config, TransformerBlockSubmodules(layer_specs=layers, layer_norm=RMSNorm))


def own_mixtures(config: TransformerConfig, hf_config: object) -> slice:
    """This stage's layers of experts, among all of them."""
    mixtures, first = mixture_layers(hf_config), get_transformer_layer_offset(config)
    before = sum(mixtures[:first])
    return slice(before, before + sum(mixtures[first : first + get_num_layers_to_build(config)]))


def _layer(config: TransformerConfig, mixture: bool) -> ModuleSpec:
    layer: ModuleSpec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts if mixture else None,
        moe_grouped_gemm=False,  # needs Transformer Engine
        normalization="RMSNorm",
        qk_layernorm=config.qk_layernorm,
    )
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = RMSNorm
    if mixture:
        layer.submodules.mlp.submodules.router = ExpertTopKRouter
        layer.submodules.mlp.submodules.experts.module = GroupedExperts
    attention = layer.submodules.self_attention.submodules
    attention.core_attention = ModuleSpec(module=CausalAttention)
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return layer


def _inverse_frequencies(hf_config: Any) -> Tensor:
    """[D / 2], transformers' own: Megatron's scaling knows the constants of Llama 3.1 only."""
    kind = rope_type(hf_config)
    if kind != "default":
        frequencies: Tensor = ROPE_INIT_FUNCTIONS[kind](hf_config, torch.device("cpu"))[0]
        return frequencies
    size = getattr(hf_config, "head_dim", None) or hf_config.hidden_size // hf_config.num_attention_heads
    exponents = torch.arange(0, size, 2, dtype=torch.float32) / size
    inverse: Tensor = 1.0 / float(hf_config.rope_parameters["rope_theta"]) ** exponents
    return inverse


class GroupedExperts(SequentialMLP):  # type: ignore[misc]
    def forward(self, tokens: Tensor, counts: Tensor, probs: Tensor) -> tuple[Tensor, None]:
        """[N, H], those of each expert together; [E], how many each has; [N], what their outputs are weighted by -> [N, H]."""
        first, second = ([getattr(e, name).weight for e in self.local_experts] for name in ("linear_fc1", "linear_fc2"))
        if experts_kernel([first[0].shape, second[0].shape]) == "eager":
            return super().forward(tokens, counts, probs)  # type: ignore[no-any-return]
        ends = counts.cumsum(0).to(tokens.device, torch.int32)
        gate, up = GroupedProduct.apply(tokens, ends, *first).chunk(2, -1)
        inner = self.config.activation_func(gate) * up * probs.unsqueeze(-1)
        return GroupedProduct.apply(inner.to(tokens.dtype), ends, *second), None


class GroupedProduct(torch.autograd.Function):
    """x wᵀ, with the w of the expert that each row of x is for.

    The product takes all matrices as one. That copy is made anew for the gradient instead of being kept: it is as large as the
    layer's weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ends: Tensor, *weights: Tensor) -> Tensor:
        """[N, in], [E] int32, E of [out, in] -> [N, out]. `ends`: the rows that all experts up to this one have."""
        ctx.save_for_backward(x, ends, *weights)
        return _product(x, torch.stack(weights).mT, ends)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        x, ends, *weights = ctx.saved_tensors
        grad = grad.contiguous()
        of_weights = grouped_mm(grad.mT, x, offs=ends) if len(x) else torch.zeros_like(torch.stack(weights))
        return _product(grad, torch.stack(weights), ends), None, *of_weights.unbind()


def _product(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """torch's product refuses a matrix without rows."""
    return grouped_mm(x, weights, offs=ends) if len(x) else x.new_empty(0, weights.shape[-1])

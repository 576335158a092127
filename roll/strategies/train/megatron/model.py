"""A Megatron GPT model that computes what the Hugging Face model does, from Megatron-core's own layers ("local spec").

Three parts differ from Megatron's: attention is torch's (the local one keeps [B, H, T, T] scores), RMSNorm works with sequence
parallelism (the local one refuses), and the last stage computes the logits of trained tokens only. The same modules run on CPUs
and on GPUs, with or without Transformer Engine, so their numbers agree.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from roll.strategies.train.megatron.convert import padded_vocab
from roll.strategies.train.megatron.supported import check_model, rope_type


class RMSNorm(nn.RMSNorm):
    """Its weight tells whether its gradient must be summed over the tensor-parallel ranks, each of which sees some tokens."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


class CausalAttention(nn.Module):
    """softmax(q kᵀ / √d) v over what precedes, by torch's fused kernels. Padding is on the right: no token sees it."""

    def __init__(self, config: TransformerConfig, **_: Any) -> None:
        super().__init__()
        self._grouped = config.num_query_groups != config.num_attention_heads

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        """[T, B, H, D], [T, B, G, D], [T, B, G, D] -> [T, B, H·D]."""
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self._grouped)
        return out.permute(2, 0, 1, 3).flatten(2)


class PolicyModel(GPTModel):  # type: ignore[misc]
    """One pipeline stage. The last one returns logits [R, V_rank] of the R positions that predict a token where `loss_mask`
    [B, T] is True, row by row; the others [T, B, H] for the next stage."""

    def __init__(self, config: TransformerConfig, hf_config: Any, layers: TransformerBlockSubmodules) -> None:
        super().__init__(
            config,
            layers,
            vocab_size=padded_vocab(hf_config.vocab_size, config.tensor_model_parallel_size),
            max_sequence_length=hf_config.max_position_embeddings,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
            share_embeddings_and_output_weights=bool(hf_config.tie_word_embeddings),
            position_embedding_type="rope",
        )
        self.rotary_pos_emb.inv_freq = _inverse_frequencies(hf_config)
        columns = self.vocab_size // config.tensor_model_parallel_size
        self.first_column = columns * parallel_state.get_tensor_model_parallel_rank()
        self._columns = min(columns, hf_config.vocab_size - self.first_column)
        if self.post_process and config.sequence_parallel:
            # Whole sequences are gathered before the rows are chosen, which hold tokens of all ranks.
            self.output_layer.sequence_parallel = False
            self.output_layer.allreduce_dgrad = True

    def setup_embeddings_and_output_layer(self) -> None:
        """The base class also copies a tied embedding from the first stage to the last; here both read it from the checkpoint."""
        if not self.share_embeddings_and_output_weights or self.config.pipeline_model_parallel_size == 1:
            super().setup_embeddings_and_output_layer()
        elif self.pre_process or self.post_process:
            weight = self.shared_embedding_or_output_weight()
            weight.is_embedding_or_output_parameter = True
            weight.shared_embedding = True  # its gradient is summed over both stages,
            weight.shared = not self.pre_process  # and counts once in the norm

    def _postprocess(self, hidden_states: Tensor, *_: Any, loss_mask: Tensor, **__: Any) -> Tensor:
        if not self.post_process:
            return hidden_states
        if self.config.sequence_parallel:
            hidden_states = gather_from_sequence_parallel_region(hidden_states, tensor_parallel_output_grad=False)
        rows, columns = loss_mask[:, 1:].nonzero(as_tuple=True)
        chosen = hidden_states.flatten(0, 1).index_select(0, columns * loss_mask.shape[0] + rows)
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        logits, _ = self.output_layer(chosen.unsqueeze(1), weight=weight)
        own: Tensor = logits.squeeze(1)[:, : self._columns]
        return own


def transformer_config(hf_config: Any, dtype: torch.dtype, **chosen: Any) -> TransformerConfig:
    """`chosen`: fields of TransformerConfig. Dropout is off: the ratio of two log-probs must come from the weights alone."""
    check_model(hf_config, chosen.get("tensor_model_parallel_size", 1), chosen.get("pipeline_model_parallel_size", 1))
    return TransformerConfig(
        num_layers=hf_config.num_hidden_layers,
        hidden_size=hf_config.hidden_size,
        num_attention_heads=hf_config.num_attention_heads,
        num_query_groups=hf_config.num_key_value_heads,
        kv_channels=getattr(hf_config, "head_dim", None) or hf_config.hidden_size // hf_config.num_attention_heads,
        ffn_hidden_size=hf_config.intermediate_size,
        layernorm_epsilon=hf_config.rms_norm_eps,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=hf_config.model_type == "qwen2",
        qk_layernorm=hf_config.model_type == "qwen3",
        attention_dropout=0.0,
        hidden_dropout=0.0,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        fp16=dtype == torch.float16,
        # Weights are read into the parameters right away. Initialisation stays on, for it marks how each is divided.
        use_cpu_initialization=True,
        init_method=_leave,
        output_layer_init_method=_leave,
        calculate_per_token_loss=True,
        **chosen,
    )


def build_stage(config: TransformerConfig, hf_config: Any) -> PolicyModel:
    """The layers of this rank, on the CPU, their weights not yet read."""
    layer = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=config.qk_layernorm)
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = RMSNorm
    attention = layer.submodules.self_attention.submodules
    attention.core_attention = ModuleSpec(module=CausalAttention)
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    layers = [layer] * get_num_layers_to_build(config)
    return PolicyModel(config, hf_config, TransformerBlockSubmodules(layer_specs=layers, layer_norm=RMSNorm))


def _inverse_frequencies(hf_config: Any) -> Tensor:
    """[D / 2], transformers' own: Megatron's scaling knows the constants of Llama 3.1 only."""
    kind = rope_type(hf_config)
    if kind != "default":
        frequencies, _ = ROPE_INIT_FUNCTIONS[kind](hf_config, torch.device("cpu"))
        return frequencies
    size = getattr(hf_config, "head_dim", None) or hf_config.hidden_size // hf_config.num_attention_heads
    exponents = torch.arange(0, size, 2, dtype=torch.float32) / size
    inverse: Tensor = 1.0 / float(hf_config.rope_parameters["rope_theta"]) ** exponents
    return inverse


def _leave(tensor: Tensor) -> Tensor:
    return tensor

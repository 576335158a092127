"""What the routers of transformers' mixtures choose, and what they make of experts that are given to them."""

from typing import Any

import pytest
import torch
from tiny_models import numbered_tokenizer, tiny_mixture, tiny_qwen2
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from roll.strategies.routers import Routers, check_replayable

SIZES = {
    "vocab_size": 37,
    "hidden_size": 16,
    "intermediate_size": 24,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "initializer_range": 0.4,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2_moe": {"num_experts": 8, "num_experts_per_tok": 3, "shared_expert_intermediate_size": 8},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 3, "head_dim": 8, "norm_topk_prob": True},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 3},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 3},
    "granitemoe": {"num_local_experts": 8, "num_experts_per_tok": 3},
    "gpt_oss": {"num_local_experts": 8, "num_experts_per_tok": 3, "head_dim": 8},
    # Of four groups of experts two are chosen first, by the sum of their two best.
    "deepseek_v3": {
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 0,
        **LATENT,
    },
}
TOKENS = torch.arange(2, 26).view(2, 12)


def made(family: str) -> nn.Module:
    torch.manual_seed(0)
    config = CONFIG_MAPPING[family](**SIZES, **FAMILIES[family])
    model: nn.Module = AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        if "router" in name or "gate.weight" in name:
            nn.init.normal_(parameter, 0.0, 0.5)
    return model


def logits(model: Any) -> Tensor:
    said: Tensor = model(TOKENS, use_cache=False).logits
    return said


@pytest.mark.parametrize("family", FAMILIES)
def test_what_was_recorded_is_replayed_with_the_routers_own_weights(family):
    model = made(family)
    routers, plain = Routers(model), logits(model)
    routers.record()
    assert torch.equal(logits(model), plain)
    own = routers.taken()
    assert own.shape == (24, 2, 3) and own.dtype == torch.uint8 and int(own.max()) < 8

    routers.replay(own)
    assert torch.equal(logits(model), plain)
    changed, known = routers.changed()
    assert (int(changed), int(known)) == (0, own.numel())

    others = torch.rand(24, 2, 8, generator=torch.Generator().manual_seed(1)).argsort(-1)[..., :3].to(torch.uint8)
    routers.replay(others)
    replayed = logits(model)
    replayed.square().sum().backward()
    assert (replayed - plain).abs().max() > 1e-3
    gates = [p for name, p in model.named_parameters() if ("router" in name or ".gate." in name) and name.endswith("weight")]
    assert all(gate.grad is not None and gate.grad.abs().max() > 0 for gate in gates)

    routers.replay(None)
    assert torch.equal(logits(model), plain) and routers.changed() is None


def plain_mixture(block: Any, hidden: Tensor, experts: Tensor) -> Tensor:
    """Qwen3's layer of experts as a loop over tokens, with these experts."""
    outputs = []
    for token, chosen in zip(hidden, experts.tolist(), strict=True):
        scores = (block.gate.weight @ token).softmax(-1)[chosen]
        weights = scores / scores.sum()
        gated = [(block.experts.gate_up_proj[e] @ token).chunk(2) for e in chosen]
        parts = [block.experts.down_proj[e] @ (nn.functional.silu(g) * u) for e, (g, u) in zip(chosen, gated, strict=True)]
        outputs.append(sum(weight * part for weight, part in zip(weights, parts, strict=True)))
    return torch.stack(outputs)


def test_replay_equals_a_plain_loop_in_values_and_gradients():
    """In float64, but for the router's softmax, which transformers takes in float32."""
    model = tiny_mixture(37).double()
    model.set_experts_implementation("eager")
    block, routers = model.model.layers[0].mlp, Routers(model)
    experts = torch.rand(6, 3, 8).argsort(-1)[..., :2].to(torch.uint8)
    hidden = torch.randn(6, 16, dtype=torch.float64)
    cotangent = torch.randn(6, 16, dtype=torch.float64)
    said = []
    for compute in (lambda h: block(h[None])[0], lambda h: plain_mixture(block, h, experts[:, 0].long())):
        model.zero_grad()
        routers.replay(experts)
        leaf = hidden.clone().requires_grad_()
        out = compute(leaf)
        out.backward(cotangent)
        gradients = [leaf.grad, *(parameter.grad for parameter in block.parameters())]
        said.append([out.detach(), *(gradient.clone() for gradient in gradients)])
    for ours, plain in zip(*said, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-6)


def test_where_nothing_is_known_a_router_chooses_itself():
    model = tiny_mixture(37)
    routers = Routers(model)
    routers.record()
    plain = logits(model)
    given = routers.taken()
    given[::2] = 255
    routers.replay(given)
    assert torch.equal(logits(model), plain)
    assert int(routers.changed()[1]) == given.numel() // 2


def test_experts_of_another_model_are_refused():
    with pytest.raises(ValueError, match=r"experts of \[4, 2\] layers and experts a token, but Qwen3MoeForCausalLM has \[3, 2\]"):
        Routers(tiny_mixture(37)).replay(torch.zeros(1, 4, 2, dtype=torch.uint8))


def test_a_model_without_experts_is_refused(tmp_path):
    tiny_qwen2(37).save_pretrained(tmp_path)
    numbered_tokenizer(37).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="Qwen2ForCausalLM has no routers of experts that are known here"):
        check_replayable(tmp_path)
    tiny_mixture(37).save_pretrained(tmp_path)
    check_replayable(tmp_path)


def test_a_layer_that_does_not_ask_its_router_is_noticed():
    model = tiny_mixture(37)
    routers = Routers(model)
    model.model.layers[1].mlp.forward = lambda hidden: hidden
    routers.replay(torch.zeros(24, 3, 2, dtype=torch.uint8))
    logits(model)
    with pytest.raises(ValueError, match="has not asked its router"):
        routers.changed()

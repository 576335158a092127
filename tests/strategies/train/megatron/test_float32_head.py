"""Two gloo ranks that divide the vocabulary, with logits in float32 of bfloat16 weights: exact, and the same on both."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import numbered_tokenizer, tiny_qwen2

from roll.platform.ports import free_port

pytest.importorskip("megatron.core", reason="needs requirements/megatron.txt")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("megatron")]

PROGRAM = Path(__file__).with_name("float32_head_program.py")


def test_log_probs_are_exact_over_both_parts_of_the_vocabulary(programs, tmp_path):
    """1e-5 nats from float64, of the hidden states and weights that the ranks have; logits are up to 30."""
    model = tiny_qwen2(37, num_key_value_heads=2, initializer_range=0.5)
    model.model.embed_tokens.weight.data *= 6.0
    model.save_pretrained(tmp_path / "model")
    numbered_tokenizer(37).save_pretrained(tmp_path / "model")
    ports = f"{free_port()},{free_port()}"
    programs.run(PROGRAM, *((tmp_path / "model", tmp_path, rank, ports) for rank in range(2)))
    errors = {}
    for name in ("fp32", "rounded"):
        one, other = (load_file(tmp_path / f"{name}-{rank}.safetensors") for rank in range(2))
        assert torch.equal(one["logprobs"], other["logprobs"]) and torch.equal(one["hidden"], other["hidden"])
        weight = torch.cat([one["weight"], other["weight"]])
        assert weight.dtype == torch.bfloat16 and len(weight) == 37 and len(one["targets"]) > 20
        logits = one["hidden"].double() @ weight.double().t() / one["temperature"][:, None]
        expected = logits.log_softmax(-1).gather(1, one["targets"][:, None])[:, 0]
        errors[name] = float((one["logprobs"].double() - expected).abs().max())
    assert errors["fp32"] < 1e-5 and errors["rounded"] > 1e-2

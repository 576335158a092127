"""What is known of SGLang before a server starts."""

import pytest
from transformers import LlamaConfig, Qwen3MoeConfig

from roll.strategies.infer.sglang.arguments import check_folder, server_arguments, teaching_arguments


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (Qwen3MoeConfig(tie_word_embeddings=True), "tie_word_embeddings is true"),
        (Qwen3MoeConfig(mlp_only_layers=[1]), "layers without experts"),
        (Qwen3MoeConfig(decoder_sparse_step=2), "layers without experts"),
        (Qwen3MoeConfig(), None),
        (LlamaConfig(tie_word_embeddings=True), None),
    ],
)
def test_a_model_of_which_sglang_would_leave_a_part_empty_is_refused(tmp_path, config, says):
    config.save_pretrained(tmp_path)
    if says is None:
        check_folder(str(tmp_path), {}, "fp32", "cpu")
    else:
        with pytest.raises(ValueError, match=rf"{says}.*which nothing would fill: use hf_infer or vllm"):
            check_folder(str(tmp_path), {}, "fp32", "cpu")


def test_a_head_in_float32_is_the_servers_own_argument():
    sizes = {"devices": ["cuda:0"], "dtype": "bfloat16", "seed": 1, "max_length": 64, "max_running_requests": 4}
    assert server_arguments("folder", {}, **sizes, head_dtype="fp32")["enable_fp32_lm_head"] is True
    assert teaching_arguments("folder", {}, **sizes, max_tokens=64, head_dtype="fp32")["enable_fp32_lm_head"] is True
    assert "enable_fp32_lm_head" not in server_arguments("folder", {}, **sizes)

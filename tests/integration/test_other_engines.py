"""Whole runs with vLLM and SGLang in interpreters of their own, which start empty: the first weights, too, are the trainer's."""

from dataclasses import replace

import pytest
from other_engines import ENGINES, VLLM_MARKS
from tiny_models import FOR_VLLM, tiny_mixture, tiny_qwen2
from transformers import AutoTokenizer

from roll.core.configs.derived import old_logprobs_recomputed
from roll.core.configs.problems import ConfigError
from roll.platform.local_backend import LocalBackend
from roll.prepare.rlvr_run import prepare


def test_a_model_that_vllm_cannot_run_on_a_cpu_is_refused_before_any_worker_starts(lab, make_config):
    config = make_config({"actor_infer.strategy_args.strategy_name": "vllm"})
    with pytest.raises(
        ConfigError, match=r"strategy_name = 'vllm': vLLM on CPUs supports heads of .* model's have 8: use hf_infer"
    ):
        prepare(config, lab.inventory)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("engine", "python"), ENGINES)
def test_a_run_whose_engine_starts_empty_samples_from_the_trainers_weights(
    lab, make_config, with_validation, material, tmp_path, request, engine, python
):
    """The log-probs of every step are those of the trainer to rounding, though the engine never read the model's weights. An
    evaluation of the checkpoints with such an engine gives the answers of the run's validations; vLLM's is of this interpreter
    then, whose imports are made."""
    tokenizer = AutoTokenizer.from_pretrained(material / "model")
    model = tiny_qwen2(len(tokenizer), eos_token_id=1, pad_token_id=0, **FOR_VLLM)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    elsewhere = {"python": python, "load_format": "dummy"}
    changes = {
        "pretrain": str(tmp_path / "model"),
        "actor_infer.strategy_args": {"strategy_name": engine, "strategy_config": elsewhere},
        "rpc_timeout": 200.0,
        "rollout_log_per_step": 16,
        "save_steps": 1,
        "actor_train.training_args.learning_rate": 0.03,
        **with_validation,
        "validation.generating_args.temperature": 0.0,
    }
    config = make_config(changes, max_steps=2, async_generation_ratio=0)
    run = lab.run(config)
    for row in run.steps():
        assert row["actor/engine_mismatch_max"] < 1e-4, "the engine samples from other weights than the trainer's"
    assert run.summary["weight_updates"]["count"] == 2
    if engine == "vllm":
        request.getfixturevalue("forked_engines")
        del elsewhere["python"]
        config = make_config(changes, max_steps=2, async_generation_ratio=0)
    evaluated = lab.start(replace(config, mode="bench", bench_checkpoints=["pretrain", str(run.run_dir)]), LocalBackend())
    assert evaluated.summary["status"] == "finished", evaluated.summary["reason"]
    assert [row["model"] for row in evaluated.summary["evaluation"]] == ["pretrain", "step-1", "step-2"]
    greedy, again = (
        {(row["step"], row["prompt_uid"]): row["response_ids"] for row in each.rows("samples") if row["status"] == "validation"}
        for each in (run, evaluated)
    )
    assert greedy.keys() == again.keys() and len(greedy) == 3 * 16
    same = sum(again[key] == tokens for key, tokens in greedy.items())
    assert same >= 45, "the checkpoints' weights answer as the versions did, to rounding"
    assert sum(greedy[0, uid] != greedy[2, uid] for step, uid in greedy if step == 2) > 3, "and versions differ"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("engine", "python"), ENGINES)
def test_a_mixture_trains_over_the_sets_and_with_the_experts_of_its_engine(lab, make_config, material, tmp_path, engine, python):
    """Through the other interpreter's messages. Log-probs of the same weights are the trainer's to rounding, which those over the
    whole vocabulary (top_p 0.7: up to 0.36 nats) or of other experts are not."""
    tokenizer = AutoTokenizer.from_pretrained(material / "model")
    sizes = FOR_VLLM | {"moe_intermediate_size": 32, "head_dim": 32, "eos_token_id": 1, "pad_token_id": 0}
    tiny_mixture(len(tokenizer), tie_word_embeddings=False, **sizes).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    changes = {
        "pretrain": str(tmp_path / "model"),
        "actor_infer.strategy_args": {"strategy_name": engine, "strategy_config": {"python": python}},
        "actor_infer.generating_args": {"temperature": 1.0, "top_p": 0.7},
        "actor_train.router_replay.mode": "R3",
        "actor_train.training_args.learning_rate": 0.03,
        "rpc_timeout": 200.0,
    }
    run = lab.run(make_config(changes, max_steps=3, async_generation_ratio=1))
    compared = [row["actor/engine_mismatch_max"] for row in run.steps() if "actor/engine_mismatch_max" in row]
    assert compared and compared[0] < 1e-4
    assert all(1 <= row["tokens/kept_set/mean"] < len(tokenizer) for row in run.steps())
    assert run.steps()[0]["actor/router_replay_changed"] < 1e-3
    assert run.steps()[-1]["actor/router_replay_changed"] > 0, "the experts are those of the version that sampled"


@pytest.mark.slow
@pytest.mark.timeout(600)
@VLLM_MARKS[0]
@pytest.mark.xdist_group("vllm")
def test_a_run_that_samples_in_fp8_measures_the_mismatch_and_weights_for_it(lab, make_config, material, tmp_path, forked_engines):
    tokenizer = AutoTokenizer.from_pretrained(material / "model")
    tiny_qwen2(len(tokenizer), eos_token_id=1, pad_token_id=0, **FOR_VLLM).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    changes = {
        "pretrain": str(tmp_path / "model"),
        "actor_infer.strategy_args": {
            "strategy_name": "vllm",
            "strategy_config": {"quantization": "fp8", "kv_cache_dtype": "fp8"},
        },
        "actor_infer.model_args.dtype": "bf16",
        "rpc_timeout": 200.0,
        "mismatch_alarm": None,
    }
    config = make_config(changes, max_steps=3, async_generation_ratio=0)
    recomputed, why = old_logprobs_recomputed(config)
    assert recomputed and "samples in FP8" in why
    run = lab.run(config)
    for row in run.steps():
        assert 1e-3 < row["actor/engine_mismatch"] < 0.5, "it differs by more than rounding, and by less than other weights"
        assert 0 < row["actor/is_weight_ess"] < 1 and row["actor/is_weight_max"] <= 5, "weighted, truncated"

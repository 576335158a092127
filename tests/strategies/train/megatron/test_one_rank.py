import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from saving import contents, save
from train_specs import fsdp2_spec, train_spec
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from roll.core.algorithms.loss import LossSpec
from roll.core.data.kept_tokens import KeptSets, KeptTokens
from roll.core.workers.train_interface import RankContext
from roll.strategies.train.fsdp2 import FSDP2Strategy
from roll.strategies.train.megatron.supported import ParallelLayout, check_folder, check_model

pytest.importorskip("megatron.core", reason="needs requirements/megatron.txt")
from roll.strategies.train.megatron.strategy import MegatronStrategy

pytestmark = pytest.mark.slow


@pytest.fixture
def make(megatron_models, rank_program):
    made = []

    def build(model="qwen2-tied", **options):
        made.append(
            MegatronStrategy(
                RankContext(), train_spec("megatron_train", megatron_models / model, **{**rank_program.OPTIONS, **options})
            )
        )
        return made[-1]

    yield build
    for strategy in made:
        strategy.close()


@pytest.fixture
def fsdp2(family_models, rank_program):
    return FSDP2Strategy(RankContext(), fsdp2_spec(family_models / "qwen2-tied", **rank_program.OPTIONS))


def weights(strategy):
    return {name: tensor for bucket in strategy.export_weights(1 << 20) for name, tensor in bucket.tensors.items()}


def same(got, expected):
    return got.keys() == expected.keys() and all(torch.equal(got[name], tensor) for name, tensor in expected.items())


def train(strategy, rank_program, seeds):
    batches = [rank_program.make_batch(seed) for seed in seeds]
    return [strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch)) for batch in batches]


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens_per_microbatch": 1},
        {"max_tokens_per_microbatch": 1000},
        {"use_distributed_optimizer": False},
        {"recompute_granularity": "selective"},
        {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1},
    ],
    ids=str,
)
def test_every_way_to_run_a_step_takes_the_same_step(make, fsdp2, rank_program, options):
    strategy = make(**options)
    for got, expected in zip(train(strategy, rank_program, range(2)), train(fsdp2, rank_program, range(2)), strict=True):
        assert got == pytest.approx(expected, rel=1e-4, abs=1e-6)
    expected = weights(fsdp2)
    for name, tensor in weights(strategy).items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=2e-5 * float(expected[name].abs().max()), msg=name)


@pytest.mark.parametrize("distributed", [True, False])
def test_the_optimiser_updates_all_weights_by_the_fused_kernel(make, rank_program, monkeypatch, distributed):
    kernel, updated = torch._fused_adamw_, []

    def counted(masters, *others, **options):
        updated.extend(masters)
        kernel(masters, *others, **options)

    monkeypatch.setattr(torch, "_fused_adamw_", counted)
    strategy = make("qwen3_moe", use_distributed_optimizer=distributed)
    train(strategy, rank_program, [0])
    assert sum(each.numel() for each in updated) == sum(each.numel() for each in weights(strategy).values())


@pytest.mark.parametrize("model", ["qwen2-untied", "qwen3-tied", "llama-untied", "qwen2_moe", "qwen3_moe"])
def test_log_probs_and_weights_are_those_of_the_hugging_face_model(make, megatron_models, rank_program, model):
    path = str(megatron_models / model)
    strategy = make(model, trainable=False)
    batch = rank_program.make_batch(0)
    expected = FSDP2Strategy(RankContext(), fsdp2_spec(path, **rank_program.OPTIONS, trainable=False)).log_probs(batch)
    torch.testing.assert_close(strategy.log_probs(batch), expected, rtol=1e-5, atol=1e-5)
    assert same(weights(strategy), load_file(megatron_models / model / "model.safetensors"))
    assert strategy.log_probs(batch.select([])).numel() == 0
    with pytest.raises(RuntimeError, match="frozen"):
        strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch))


def test_log_probs_over_kept_sets_are_those_of_the_hugging_face_model(make, megatron_models, rank_program):
    batch = rank_program.make_batch(0)
    sets = [{int(token), 3, 5, 8 + i % 20} if i % 4 else () for i, token in enumerate(batch.tokens)]
    kept = KeptSets.of([KeptTokens.of([np.array(sorted(ids), dtype=np.int32) for ids in sets])])
    batch = dataclasses.replace(batch, kept=kept)
    spec = fsdp2_spec(str(megatron_models / "qwen3-tied"), **rank_program.OPTIONS, trainable=False)
    expected = FSDP2Strategy(RankContext(), spec).log_probs(batch)
    torch.testing.assert_close(make("qwen3-tied", trainable=False).log_probs(batch), expected, rtol=1e-5, atol=1e-5)


def test_learning_rate_is_that_of_steps_taken(make, rank_program):
    strategy, twin = make(), make()
    batch = rank_program.make_batch(0)
    broken = dataclasses.replace(batch, advantages=torch.full_like(batch.advantages, torch.nan))
    before = weights(strategy)
    skipped = strategy.train_step(broken, rank_program.LOSS, rank_program.totals(batch))
    assert skipped["actor_train/skipped_steps"] == 1 and same(weights(strategy), before)
    got, expected = train(strategy, rank_program, range(3)), train(twin, rank_program, range(3))
    assert [step["actor_train/lr"] for step in got] == pytest.approx([0.5e-3, 1e-3, 1e-3])
    assert [{**step, "actor_train/skipped_steps": 0} for step in got] == expected
    assert same(weights(strategy), weights(twin))


def test_the_learning_rate_follows_the_effective_sample_size(make, rank_program):
    batch, strategy = rank_program.make_batch(0), make(lr_scheduler_type="constant", warmup_steps=0)
    loss = dataclasses.replace(rank_program.LOSS, full_rate_ess=0.9)
    step = strategy.train_step(batch, loss, rank_program.totals(batch))
    scale = (step["actor/train_infer_ess_sequence"] / 0.9) ** 0.5
    assert step["actor_train/lr"] == pytest.approx(1e-3 * scale) and scale < 0.9


@pytest.mark.parametrize("distributed", [True, False])
def test_saved_and_loaded_run_continues_bit_for_bit(make, rank_program, tmp_path, distributed):
    uninterrupted, first, second = (make(use_distributed_optimizer=distributed) for _ in range(3))
    expected = train(uninterrupted, rank_program, range(4))
    got = train(first, rank_program, range(2))
    snapshot = first.snapshot()
    first.write(snapshot, tmp_path)
    drawn = torch.rand(3)
    train(first, rank_program, range(2, 4))
    written = contents(tmp_path)
    first.write(snapshot, tmp_path / "later")
    assert contents(tmp_path / "later") == written, "the steps that came between changed the snapshot"
    second.load(tmp_path)
    assert torch.equal(torch.rand(3), drawn)
    assert got + train(second, rank_program, range(2, 4)) == expected
    assert same(weights(second), weights(uninterrupted))
    assert AutoTokenizer.from_pretrained(tmp_path / "model").eos_token == "t1"


def test_checkpoint_before_the_first_step(make, rank_program, tmp_path):
    strategy, other = make(), make()
    save(strategy, tmp_path)
    train(other, rank_program, [0])
    other.load(tmp_path)
    assert train(strategy, rank_program, [0]) == train(other, rank_program, [0])


@pytest.mark.parametrize("model", ["qwen2-tied", "qwen3_moe", "qwen2_moe"])
def test_checkpoints_of_fsdp2_and_megatron_are_interchangeable(make, megatron_models, rank_program, tmp_path, model):
    make = partial(make, model)
    fsdp2 = FSDP2Strategy(RankContext(), fsdp2_spec(megatron_models / model, **rank_program.OPTIONS))
    strategy = make()
    train(strategy, rank_program, range(2))
    save(strategy, tmp_path / "megatron")
    fsdp2.load(tmp_path / "megatron")
    assert same(weights(fsdp2), weights(strategy))
    save(fsdp2, tmp_path / "fsdp2")
    for file in ("optimizer.safetensors", "model/model.safetensors"):
        assert same(load_file(tmp_path / "fsdp2" / file), load_file(tmp_path / "megatron" / file))
    other = make()
    other.load(tmp_path / "fsdp2")
    continued = train(strategy, rank_program, [2])
    assert train(other, rank_program, [2]) == continued
    assert train(fsdp2, rank_program, [2])[0] == pytest.approx(continued[0], rel=1e-4, abs=1e-6)


def test_checkpoint_of_another_model_is_refused_and_changes_nothing(make, rank_program, tmp_path):
    strategy, other = make(), make("llama-untied")
    before = weights(strategy)
    save(other, tmp_path)
    with pytest.raises(ValueError, match=r"is of another model: 'model\.layers\.0\.self_attn\.q_proj\.bias' is missing"):
        strategy.load(tmp_path)
    assert same(weights(strategy), before)
    train(strategy, rank_program, [0])
    save(strategy, tmp_path)
    moments = load_file(tmp_path / "optimizer.safetensors")
    del moments["model.norm.weight.exp_avg_sq"]
    save_file(moments, tmp_path / "optimizer.safetensors")
    trained = weights(strategy)
    with pytest.raises(ValueError, match=r"'model\.norm\.weight' is missing"):
        strategy.load(tmp_path)
    assert same(weights(strategy), trained)


@pytest.mark.parametrize("model", ["qwen2-tied", "qwen3_moe"])
@pytest.mark.parametrize("distributed", [True, False])
def test_bf16_computes_in_bf16_on_float32_masters(make, rank_program, tmp_path, distributed, model):
    make = partial(make, model)
    exact = make().log_probs(rank_program.make_batch(0))
    strategy = make(dtype="bf16", use_distributed_optimizer=distributed)
    assert 0 < (strategy.log_probs(rank_program.make_batch(0)) - exact).abs().max() < 0.3
    exported = weights(strategy)
    train(strategy, rank_program, range(4))
    assert {tensor.dtype for tensor in weights(strategy).values()} == {torch.bfloat16}
    assert not same(weights(strategy), exported)
    save(strategy, tmp_path)
    saved = load_file(tmp_path / "model/model.safetensors")
    assert all(tensor.dtype == torch.float32 for tensor in saved.values())
    assert any(not torch.equal(tensor, tensor.bfloat16().float()) for tensor in saved.values())
    assert same({name: tensor.bfloat16() for name, tensor in saved.items()}, weights(strategy))
    again = make(dtype="bf16", use_distributed_optimizer=distributed)
    again.load(tmp_path)
    assert train(again, rank_program, [4]) == train(strategy, rank_program, [4])
    assert same(weights(again), weights(strategy))


def test_training_raises_the_probability_of_rewarded_tokens(make, rank_program):
    strategy = make(learning_rate=1e-2, lr_scheduler_type="constant", weight_decay=0.0)
    batch = rank_program.make_batch(0)
    batch = batch.with_(advantages=batch.loss_mask.float(), behaviour_logprobs=strategy.log_probs(batch))
    before = strategy.log_probs(batch).sum()
    for _ in range(5):
        strategy.train_step(batch, LossSpec(pg_variant="vanilla"), rank_program.totals(batch))
    assert strategy.log_probs(batch).sum() > before + 10


def test_exported_weights_do_not_change_with_training(make, rank_program):
    strategy = make()
    exported = weights(strategy)
    copies = {name: tensor.clone() for name, tensor in exported.items()}
    train(strategy, rank_program, [0])
    assert same(exported, copies) and not same(weights(strategy), copies)


def test_options_that_cannot_be(make, family_models):
    with pytest.raises(ValueError, match="fp16"):
        make(dtype="fp16")
    with pytest.raises(ValueError, match="attn_implementation 'eager'"):
        make(attn_implementation="eager")
    with pytest.raises(ValueError, match="1 ranks are not a multiple of tensor_model_parallel_size 2 x"):
        make(tensor_model_parallel_size=2)
    with pytest.raises(TypeError, match="tensor_parallel"):
        make(tensor_parallel=2)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        MegatronStrategy(RankContext(), train_spec("megatron_train", family_models / "nowhere"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_key_value_heads": 1}, "tensor_model_parallel_size 2 does not divide the model's num_key_value_heads 1"),
        ({"intermediate_size": 33}, "does not divide the model's intermediate_size 33"),
        ({"num_hidden_layers": 3}, "pipeline_model_parallel_size 2 does not divide the model's num_hidden_layers 3"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"use_sliding_window": True}, "use_sliding_window: true"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}}, "rope_type 'yarn'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_models_that_are_not_supported_are_refused_by_name(family_models, change, message):
    config = AutoConfig.from_pretrained(family_models / "qwen2-tied")
    layout = ParallelLayout(tensor=2, pipeline=2)
    check_model(config, layout)
    for name, value in change.items():
        setattr(config, name, value)
    with pytest.raises(ValueError, match=message):
        check_model(config, layout)


def test_an_embedding_counts_as_a_layer_of_its_stage(family_models):
    config = AutoConfig.from_pretrained(family_models / "qwen2-tied")
    config.num_hidden_layers = 3
    check_model(config, ParallelLayout(pipeline=2, output_as_layer=True))
    with pytest.raises(ValueError, match=r"2 does not divide the model's num_hidden_layers 3 \+ embedding 1 \+ output layer 1$"):
        check_model(config, ParallelLayout(pipeline=2, embedding_as_layer=True, output_as_layer=True))
    with pytest.raises(ValueError, match=r"leaves a stage of num_hidden_layers 3 .* without a layer"):
        check_model(config, ParallelLayout(pipeline=4, embedding_as_layer=True))


@pytest.mark.parametrize(
    ("kind", "change", "layout", "message"),
    [
        ("mixtral", {}, {}, "model_type 'mixtral', only llama, qwen2, qwen3, qwen2_moe, qwen3_moe"),
        (
            "qwen3_moe",
            {"num_experts": 6},
            {"expert": 4},
            "expert_model_parallel_size 4 does not divide the model's num_experts 6",
        ),
        ("qwen3_moe", {"moe_intermediate_size": 9}, {"expert_tensor": 2}, "does not divide the model's moe_intermediate_size 9"),
        ("qwen3_moe", {}, {"tensor": 2}, "tensor_model_parallel_size 2 needs sequence_parallel: true"),
        ("qwen2_moe", {"qkv_bias": False}, {}, "qkv_bias: false"),
        ("qwen3_moe", {"num_experts_per_tok": 1, "norm_topk_prob": True}, {}, "norm_topk_prob with one expert a token"),
        ("qwen3", {}, {"expert": 2}, "expert_model_parallel_size 2: model_type 'qwen3' has no experts"),
    ],
    ids=["kind", "experts", "width", "sequence parallelism", "bias", "one expert", "no experts"],
)
def test_mixtures_that_are_not_supported_are_refused_by_name(kind, change, layout, message):
    with pytest.raises(ValueError, match=message):
        check_model(AutoConfig.for_model(kind, **change), ParallelLayout(**layout))


def test_saved_model_is_a_hugging_face_model(make, rank_program, tmp_path):
    strategy = make("qwen3-untied")
    train(strategy, rank_program, [0])
    save(strategy, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert type(model).__name__ == "Qwen3ForCausalLM" and not model.config.tie_word_embeddings
    assert same(dict(model.state_dict()), weights(strategy))


def test_deterministic_runs_are_equal_bit_for_bit(family_models, rank_program):
    runs = []
    try:
        for _ in range(2):
            strategy = MegatronStrategy(
                RankContext(deterministic=True),
                train_spec("megatron_train", family_models / "qwen2-tied", **rank_program.OPTIONS),
            )
            runs.append((train(strategy, rank_program, range(2)), weights(strategy)))
            strategy.close()
    finally:
        torch.use_deterministic_algorithms(False)
    assert runs[0][0] == runs[1][0] and same(runs[0][1], runs[1][1])


def test_what_gloo_cannot_do_is_known_before_a_worker_starts(family_models):
    layout = ParallelLayout(tensor=2, expert=2, expert_tensor=2)
    with pytest.raises(
        ValueError, match="needs GPUs: gloo gathers no tensors of unequal sizes; set expert_tensor_parallel_size: 1"
    ):
        check_folder(family_models / "qwen2-tied", layout, True, "cpu")
    with pytest.raises(ValueError, match="expert_tensor_parallel_size 2 with expert_model_parallel_size 1 and tensor_model"):
        ParallelLayout(expert_tensor=2).check_device("cpu")
    ParallelLayout(tensor=2, expert_tensor=2).check_device("cpu")
    ParallelLayout(expert_tensor=2).check_device("cuda")


def test_ranks_whose_experts_span_batches_agree_on_the_number_of_micro_batches():
    """Else one waits in a layer of experts while the other has no micro-batch left."""
    for layout, span in (
        (ParallelLayout(), False),
        (ParallelLayout(tensor=2, expert_tensor=2), False),
        (ParallelLayout(context=2, expert_tensor=2), False),
        (ParallelLayout(expert=2), True),
        (ParallelLayout(expert_tensor=2), True),
        (ParallelLayout(tensor=2, expert_tensor=4), True),
    ):
        assert layout.experts_span_batches is span

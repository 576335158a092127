"""LoRA on one rank: what is trained, what leaves the trainer, and what is refused. Several ranks: test_two_ranks."""

import json
from contextlib import nullcontext
from itertools import pairwise

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from saving import save
from train_specs import fsdp2_spec
from transformers import AutoModelForCausalLM

from roll.core.algorithms.loss import LossSpec
from roll.core.configs.arguments import ModelArguments
from roll.core.workers.train_interface import RankContext
from roll.strategies.train.fsdp2 import FSDP2Strategy
from roll.strategies.train.saved_adapters import check_adapters

RANK, ALPHA = 3, 12.0
TARGETS = ("q_proj", "v_proj", "down_proj")
ADAPTED = {
    f"model.layers.{layer}.{block}.{name}"
    for layer in range(2)
    for block, name in (("self_attn", "q_proj"), ("self_attn", "v_proj"), ("mlp", "down_proj"))
}


@pytest.fixture
def make(model_path, rank_program):
    def build(**options):
        lora = {"lora_target": ",".join(TARGETS), "lora_rank": RANK, "lora_alpha": ALPHA}
        return FSDP2Strategy(RankContext(), fsdp2_spec(model_path, **{**rank_program.OPTIONS, **lora, **options}))

    return build


@pytest.fixture
def train(rank_program):
    def take(strategy, *seeds):
        batches = [rank_program.make_batch(seed) for seed in seeds]
        return [strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch)) for batch in batches]

    return take


def parameters(strategy):
    return {name: parameter.detach().clone() for name, parameter in strategy._model.named_parameters()}


def assert_equal(got, expected):
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(got[name], tensor), name


def test_adapters_are_all_that_changes(make, train):
    strategy = make(gradient_checkpointing=True)
    before = parameters(strategy)
    trained = {name for name, parameter in strategy._model.named_parameters() if parameter.requires_grad}
    assert trained == {f"{path}.lora_{part}.default.weight" for path in ADAPTED for part in "AB"}
    # Where B is 0 the gradient of A is 0: A moves from the second step on.
    train(strategy, 0, 1)
    changed = {name for name, tensor in parameters(strategy).items() if not torch.equal(tensor, before[name])}
    assert changed == trained


def test_optimiser_holds_nothing_of_frozen_weights(make, train):
    strategy = make()
    train(strategy, 0)
    sizes = {tuple(p.shape) for group in strategy._optimizer.param_groups for p in group["params"]}
    assert sizes == {(3, 16), (16, 3), (8, 3), (3, 32)}
    assert len(strategy._optimizer.state) == 2 * len(ADAPTED)


def test_model_starts_as_it_was(make, model_path, rank_program):
    """B is 0."""
    strategy, batch = make(), rank_program.make_batch(9)
    full = FSDP2Strategy(RankContext(), fsdp2_spec(model_path, **rank_program.OPTIONS))
    assert torch.equal(strategy.log_probs(batch), full.log_probs(batch))
    assert_equal(rank_program.exported(strategy), rank_program.exported(full))


def test_exported_weights_are_those_of_the_formula(make, train, model_path, rank_program):
    """W + (alpha / r) B A on the adapted layers, in float64; all others bit for bit those of the folder."""
    strategy = make()
    train(strategy, 0, 1, 2)
    adapters = parameters(strategy)
    base = AutoModelForCausalLM.from_pretrained(model_path).state_dict()
    del base["lm_head.weight"]
    exported = rank_program.exported(strategy)
    assert exported.keys() == base.keys()
    for name, weight in base.items():
        path = name.removesuffix(".weight")
        if path in ADAPTED and name.endswith(".weight"):
            a, b = (adapters[f"{path}.lora_{part}.default.weight"].double() for part in "AB")
            expected = weight.double() + ALPHA / RANK * b @ a
            torch.testing.assert_close(exported[name].double(), expected, rtol=1e-6, atol=1e-7)
            assert not torch.equal(exported[name], weight)
        else:
            assert torch.equal(exported[name], weight), name


def test_merged_model_says_what_the_adapted_one_does(make, train, rank_program, tmp_path):
    """`model/` of a checkpoint, which `roll export` copies, is an ordinary model."""
    strategy, batch = make(), rank_program.make_batch(9)
    train(strategy, 0, 1, 2)
    save(strategy, tmp_path)
    merged = FSDP2Strategy(RankContext(), fsdp2_spec(tmp_path / "model", **rank_program.OPTIONS))
    torch.testing.assert_close(merged.log_probs(batch), strategy.log_probs(batch), rtol=1e-5, atol=1e-5)
    assert_equal(rank_program.exported(merged), rank_program.exported(strategy))
    assert not any("lora" in name for name in load_file(tmp_path / "model" / "model.safetensors"))


def test_saved_adapter_is_one_that_peft_merges_to_the_same(make, train, model_path, rank_program, tmp_path):
    strategy = make()
    train(strategy, 0, 1, 2)
    save(strategy, tmp_path)
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} <= {".json", ".safetensors", ".jinja"}
    told = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (told["r"], told["lora_alpha"], set(told["target_modules"])) == (RANK, ALPHA, set(TARGETS))
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_path), tmp_path / "adapter")
    state = loaded.merge_and_unload().state_dict()
    for name, tensor in rank_program.exported(strategy).items():
        torch.testing.assert_close(tensor, state[name], rtol=1e-6, atol=1e-7, msg=name)


def test_the_files_of_adapters_are_the_same_in_every_process(make, tmp_path):
    """A set of names lies in another order in each; all-linear has fourteen."""
    save(make(lora_target="all-linear"), tmp_path)
    targets = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["target_modules"]
    assert len(targets) == 14 and targets == sorted(targets)


def test_training_raises_the_probability_of_rewarded_tokens(make, rank_program):
    """By more than 10 nats over the batch, and on every step."""
    strategy = make(learning_rate=2e-2, lr_scheduler_type="constant", weight_decay=0.0)
    batch = rank_program.make_batch(0)
    batch = batch.with_(advantages=batch.loss_mask.float(), behaviour_logprobs=strategy.log_probs(batch))
    sums = [strategy.log_probs(batch).sum()]
    for _ in range(6):
        strategy.train_step(batch, LossSpec(pg_variant="vanilla"), rank_program.totals(batch))
        sums.append(strategy.log_probs(batch).sum())
    assert sums[-1] > sums[0] + 10
    assert all(later > earlier for earlier, later in pairwise(sums))


def test_saved_and_loaded_run_continues_bit_for_bit(make, train, rank_program, tmp_path):
    uninterrupted, first, second = make(), make(), make()
    expected = train(uninterrupted, 0, 1, 2, 3)
    got = train(first, 0, 1)
    save(first, tmp_path)
    train(second, 7)
    second.load(tmp_path)
    assert got + train(second, 2, 3) == expected
    assert_equal(parameters(second), parameters(uninterrupted))
    assert_equal(rank_program.exported(second), rank_program.exported(uninterrupted))


def test_checkpoint_of_another_kind_is_refused_and_changes_nothing(make, train, model_path, rank_program, tmp_path):
    full = FSDP2Strategy(RankContext(), fsdp2_spec(model_path, **rank_program.OPTIONS))
    train(full, 0)
    save(full, tmp_path / "full")
    adapted = make()
    train(adapted, 0)
    save(adapted, tmp_path / "lora")
    before = parameters(adapted)
    with pytest.raises(ValueError, match=r"full' was saved without LoRA; remove lora_target"):
        adapted.load(tmp_path / "full")
    assert_equal(parameters(adapted), before)

    before = parameters(full)
    with pytest.raises(ValueError, match=r"other weights were trained \(lora_target\)"):
        full.load(tmp_path / "lora")
    assert_equal(parameters(full), before)

    for options, message in (
        ({"lora_alpha": 6.0}, r"lora_alpha / lora_rank is 2, that of checkpoint '.*' 4"),
        ({"lora_rank": 6, "lora_alpha": 24.0}, r"lora_A.default.weight' is missing or of another shape"),
        ({"lora_target": ",".join([*TARGETS, "k_proj"])}, r"k_proj.lora_A.default.weight' is missing"),
        ({"lora_target": "q_proj,v_proj"}, r"has adapters of 'model.layers.0.mlp.down_proj', too: more was trained"),
    ):
        other = make(**options)
        before = parameters(other)
        with pytest.raises(ValueError, match=message):
            other.load(tmp_path / "lora")
        assert_equal(parameters(other), before)


@pytest.fixture
def saved(make, train, tmp_path):
    strategy = make()
    train(strategy, 0)
    save(strategy, tmp_path / "step-1" / "trainer")
    return tmp_path / "step-1" / "trainer"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"lora_target": None}, "step-1 was made with lora_target down_proj,q_proj,v_proj"),
        ({"lora_target": "q_proj, v_proj"}, "step-1 was made with lora_target down_proj,q_proj,v_proj, not q_proj,v_proj"),
        ({"lora_rank": 6, "lora_alpha": 24.0}, "step-1 was made with lora_rank 3, not 6"),
        ({"lora_alpha": None}, "step-1 was made with lora_alpha 12, not 6"),
        ({"lora_target": "all-linear"}, None),  # which layers that are is known where the model is loaded
        ({"lora_target": "v_proj,q_proj,down_proj"}, None),
    ],
)
def test_what_would_not_go_on_from_saved_adapters_is_known_before_a_worker_starts(saved, model_path, changes, says):
    lora = {"lora_target": ",".join(TARGETS), "lora_rank": RANK, "lora_alpha": ALPHA, **changes}
    with pytest.raises(ValueError, match=f"{says}$") if says else nullcontext():
        check_adapters(saved, ModelArguments(**lora), str(model_path))


def test_adapters_are_not_gone_on_with_upon_another_model(saved):
    """Upon the merged model their change would count twice. It has the same shapes."""
    lora = ModelArguments(lora_target=",".join(TARGETS), lora_rank=RANK, lora_alpha=ALPHA)
    with pytest.raises(ValueError, match=r"the adapters of .*step-1 were trained upon another model than .*model"):
        check_adapters(saved, lora, str(saved / "model"))


def test_a_checkpoint_of_all_weights_has_no_adapters_to_go_on_with(model_path, rank_program, tmp_path):
    full = FSDP2Strategy(RankContext(), fsdp2_spec(model_path, **rank_program.OPTIONS))
    save(full, tmp_path / "trainer")
    check_adapters(tmp_path / "trainer", ModelArguments(), str(model_path))
    with pytest.raises(ValueError, match="was made without lora_target; its trainer/model can be pretrain"):
        check_adapters(tmp_path / "trainer", ModelArguments(lora_target="q_proj"), str(model_path))


@pytest.mark.parametrize(
    ("target", "adapted"),
    [
        ("all-linear", {f"{b}.{n}_proj" for b, names in (("self_attn", "qkvo"), ("mlp", ("gate", "up", "down"))) for n in names}),
        ("o_proj, up_proj", {"self_attn.o_proj", "mlp.up_proj"}),
        (r"model\.layers\.\d+\.mlp\..*_proj", {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}),
    ],
)
def test_targets(make, target, adapted):
    strategy = make(lora_target=target)
    found = {name.split(".lora_")[0] for name, p in strategy._model.named_parameters() if p.requires_grad}
    assert found == {f"model.layers.{layer}.{path}" for layer in range(2) for path in adapted}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("query", r"lora_target: no layer 'query'; linear layers: down_proj, .*k_proj, .*q_proj, .*v_proj"),
        ("embed_tokens", r"names 'model.embed_tokens', which is not a linear layer"),
        ("lm_head", r"names 'lm_head', whose weights are tied to the input embeddings"),
    ],
)
def test_targets_that_cannot_be_are_named(make, target, message):
    with pytest.raises(ValueError, match=message):
        make(lora_target=target)


def test_bf16_base_with_float32_adapters(make, train, rank_program):
    strategy, batch = make(dtype="bf16"), rank_program.make_batch(9)
    assert 0 < (strategy.log_probs(batch) - make().log_probs(batch)).abs().max() < 0.3
    train(strategy, 0, 1)
    masters = {name: strategy._masters.of(parameter).dtype for name, parameter in strategy._model.named_parameters()}
    assert {"lora" in name: dtype for name, dtype in masters.items()} == {True: torch.float32, False: torch.bfloat16}
    assert {tensor.dtype for tensor in rank_program.exported(strategy).values()} == {torch.bfloat16}


def test_alpha_is_twice_the_rank_unless_given(make):
    assert make(lora_alpha=None)._adapters.scale == 2.0

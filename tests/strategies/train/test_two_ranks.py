"""FSDP2 and every ZeRO stage on two gloo processes against one plain process: the same losses, weights and checkpoints."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from saving import contents, save, saved
from train_specs import fsdp2_spec
from transformers import AutoModelForCausalLM

from roll.core.weights.adapter import BASE, A, B, BaseWeights, merge, weight_of
from roll.core.workers.train_interface import RankContext
from roll.platform.ports import free_port
from roll.strategies.train.fsdp2 import FSDP2Strategy

NOISE = "k_proj.bias"
"""Softmax does not see it: its gradient is rounding error alone, and AdamW makes whole steps of that."""
FLOAT32 = (
    "fsdp2",
    "fsdp2-copies",
    "fsdp2-sums-late",
    "fsdp2-gathers-once",
    "zero0",
    "zero1",
    "zero2",
    "zero3",
    "zero3-offload",
    "fsdp2-lora",
    "zero3-lora",
)
BFLOAT16 = ("fsdp2-bf16", "zero1-bf16", "zero3-bf16", "fsdp2-lora-bf16")
ADAPTERS_ALONE = ("fsdp2-lora-alone", "zero3-lora-alone")
STEMS = ("model/model", "optimizer")


def assert_same_weights(got, expected):
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        if NOISE not in name:
            torch.testing.assert_close(got[name], tensor, rtol=1e-5, atol=1e-5 * float(tensor.abs().max()), msg=name)


def part(tensors, prefix):
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@pytest.fixture(scope="module")
def runs(programs, model_path, megatron_models, rank_program, tmp_path_factory):
    """Three steps on one rank, then the same on two, which end by continuing from the checkpoint of the one."""
    folder = tmp_path_factory.mktemp("ranks")
    ones = {"one": {}, "one-lora": rank_program.LORA, "one-bf16": rank_program.BF16}
    expected = {name: one_rank(rank_program, model_path, options, folder / name) for name, options in ones.items()}

    port = free_port()
    program = Path(__file__).with_name("rank_program.py")
    layouts = (*FLOAT32, *BFLOAT16, *ADAPTERS_ALONE)
    programs.run(program, *((model_path, megatron_models, folder, rank, 2, port, *layouts) for rank in range(2)))
    return SimpleNamespace(folder=folder, expected=expected)


def one_rank(rank_program, model_path, options, checkpoint):
    one = FSDP2Strategy(RankContext(), fsdp2_spec(model_path, **{**rank_program.OPTIONS, **options}))
    logprobs, metrics = one.log_probs(rank_program.make_batch(9)), []

    def step(number):
        batch = rank_program.make_batch(number)
        return one.train_step(batch, rank_program.LOSS, rank_program.totals(batch))

    metrics = [step(number) for number in range(3)]
    trained = rank_program.exported(one)
    save(one, checkpoint)
    step(3)
    return SimpleNamespace(
        options=options, logprobs=logprobs, metrics=metrics, trained=trained, continued=rank_program.exported(one)
    )


def left_behind(runs, layout, ranks=2):
    """By all ranks, and what one rank says."""
    folder = runs.folder / layout
    return SimpleNamespace(
        one=runs.expected["one-lora" if "lora" in layout else "one"],
        tensors=[load_file(folder / f"tensors-{rank}.safetensors") for rank in range(ranks)],
        metrics=[json.loads((folder / f"metrics-{rank}.json").read_text()) for rank in range(ranks)],
        checkpoint=folder / "checkpoint",
        fresh=folder / "fresh",
    )


@pytest.fixture(params=FLOAT32)
def two(runs, request):
    return left_behind(runs, request.param)


@pytest.fixture(params=BFLOAT16)
def two_bf16(runs, request):
    return left_behind(runs, request.param)


pytestmark = pytest.mark.timeout(600)  # the first test waits for all layouts


def test_a_checkpoint_is_of_its_snapshot_however_late_it_is_written(two):
    written = contents(two.checkpoint)
    assert {"model/model.safetensors.index.json", "rng-0.safetensors", "rng-1.safetensors"} <= written.keys()
    model, optimizer = ([len(each) for name, each in written.items() if name.startswith(f"{stem}-")] for stem in STEMS)
    assert len(model) == len(optimizer) == 2 and max(model) < 0.7 * sum(model)
    assert contents(two.checkpoint.with_name("written-later")) == written


def trained(two):
    """The weights after three steps, from all ranks' exports."""
    return {name: tensor for tensors in two.tensors for name, tensor in part(tensors, "trained/").items()}


def shares_of(rank_program, logprobs):
    batch = rank_program.make_batch(9).with_(behaviour_logprobs=logprobs)
    return [batch.select(indices).behaviour_logprobs for indices in rank_program.SHARES[0]]


def test_log_probs(two, rank_program):
    for tensors, expected in zip(two.tensors, shares_of(rank_program, two.one.logprobs), strict=True):
        torch.testing.assert_close(tensors["logprobs"], expected, rtol=1e-5, atol=1e-6)


def test_metrics_are_those_of_one_rank_on_every_rank(two):
    assert two.metrics[0][:3] == two.metrics[1][:3]
    for step, expected in zip(two.metrics[0], two.one.metrics, strict=False):
        assert step == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_weights_after_three_steps(two):
    assert_same_weights(trained(two), two.one.trained)


def test_gradients_are_summed_after_each_micro_batch_or_after_the_last(runs):
    often, once = (collectives(runs, layout)["sums"] for layout in ("fsdp2", "fsdp2-sums-late"))
    assert often > once > 0 and often % once == 0, "as many collectives for each micro-batch"


def test_weights_are_gathered_twice_in_each_micro_batch_or_once_in_a_step(runs):
    often, once = (collectives(runs, layout)["gathered"] for layout in ("fsdp2", "fsdp2-gathers-once"))
    assert often >= 3 * once > 0, "of two micro-batches"


def collectives(runs, layout):
    return json.loads((runs.folder / layout / "collectives-0.json").read_text())


def test_groups_of_two_divide_the_weights_of_four(runs, programs, model_path, megatron_models):
    """Two of the four have no samples."""
    port, program = free_port(), Path(__file__).with_name("rank_program.py")
    ranks = ((model_path, megatron_models, runs.folder, rank, 4, port, "fsdp2-nodes") for rank in range(4))
    programs.run(program, *ranks)
    four = left_behind(runs, "fsdp2-nodes", 4)
    for metrics in four.metrics:
        assert metrics == four.metrics[0]
    for step, expected in zip(four.metrics[0], four.one.metrics, strict=False):
        assert step == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert_same_weights(trained(four), four.one.trained)
    assert_same_weights({k: v for tensors in four.tensors for k, v in part(tensors, "continued/").items()}, four.one.continued)


def test_compiled_layers_of_two_ranks(runs, programs, model_path, megatron_models):
    port, program = free_port(), Path(__file__).with_name("rank_program.py")
    programs.run(program, *((model_path, megatron_models, runs.folder, rank, 2, port, "fsdp2-compiled") for rank in range(2)))
    two = left_behind(runs, "fsdp2-compiled")
    for step, expected in zip(two.metrics[0], two.one.metrics, strict=False):
        assert step == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert_same_weights(trained(two), two.one.trained)


def test_each_rank_exports_its_share_of_the_buckets_and_no_tensor_twice(two):
    """Buckets of 2,000 bytes: the largest tensors have one of their own, so the shares are not equal."""
    shares = [part(tensors, "trained/") for tensors in two.tensors]
    assert shares[0].keys().isdisjoint(shares[1]) and shares[0].keys() | shares[1].keys() == two.one.trained.keys()
    sizes = [sum(tensor.nbytes for tensor in share.values()) for share in shares]
    assert max(sizes) < 0.7 * sum(sizes)


@pytest.mark.parametrize("layout", ADAPTERS_ALONE)
def test_adapters_alone_merge_with_their_base_to_what_one_rank_trained(runs, layout, model_path):
    sent = trained(left_behind(runs, layout))
    base = load_file(f"{model_path}/model.safetensors")
    expected = runs.expected["one-lora"].trained
    assert sent.pop(BASE).tolist() == [BaseWeights(Path(model_path)).fingerprint]
    changed = {weight_of(name) for name in sent}
    assert {name for name, tensor in expected.items() if not torch.equal(tensor, base[name])} == changed
    paths = {name.removesuffix(".weight") for name in changed}
    merged = {f"{path}.weight": merge(base[f"{path}.weight"], sent[path + A], sent[path + B]) for path in paths}
    assert_same_weights(merged, {name: expected[name] for name in changed})


def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_by_both(two):
    assert [metrics[3]["actor_train/skipped_steps"] for metrics in two.metrics] == [1, 1]
    skipped = part(two.tensors[0], "skipped/")
    assert all(torch.equal(skipped[name], tensor) for name, tensor in trained(two).items())


def test_checkpoint_of_two_ranks_continues_on_one(two, model_path, rank_program):
    strategy = FSDP2Strategy(RankContext(), fsdp2_spec(model_path, **rank_program.OPTIONS, **two.one.options))
    strategy.load(two.checkpoint)
    exported = rank_program.exported(strategy)
    assert all(torch.equal(exported[name], tensor) for name, tensor in trained(two).items())
    batch = rank_program.make_batch(3)
    metrics = strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch))
    assert metrics["actor_train/skipped_steps"] == 0, "saved before the step that was skipped"
    assert_same_weights(rank_program.exported(strategy), two.one.continued)
    assert type(AutoModelForCausalLM.from_pretrained(two.checkpoint / "model")).__name__ == "Qwen2ForCausalLM"
    assert {path.suffix for path in two.checkpoint.rglob("*") if path.is_file()} <= {".json", ".safetensors", ".jinja"}


def test_checkpoint_of_one_rank_continues_on_two(two):
    assert_same_weights(part(two.tensors[0], "continued/"), two.one.continued)


def test_checkpoint_before_the_first_step(two, model_path, rank_program):
    strategy = FSDP2Strategy(RankContext(), fsdp2_spec(model_path, **rank_program.OPTIONS, **two.one.options))
    batch = rank_program.make_batch(7)
    strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch))
    strategy.load(two.fresh)
    batch = rank_program.make_batch(0)
    assert strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch)) == pytest.approx(
        two.one.metrics[0], rel=1e-5
    )


def test_bf16_computes_in_bf16_on_float32_masters(two_bf16, rank_program):
    for tensors, expected in zip(two_bf16.tensors, shares_of(rank_program, two_bf16.one.logprobs), strict=True):
        assert 0 < (tensors["logprobs"] - expected).abs().max() < 0.3
    assert [metrics[3]["actor_train/skipped_steps"] for metrics in two_bf16.metrics] == [1, 1]
    exported = trained(two_bf16)
    assert {tensor.dtype for tensor in exported.values()} == {torch.bfloat16}
    masters = saved(two_bf16.checkpoint / "model", "model")
    assert any(not torch.equal(masters[name], tensor.float()) for name, tensor in exported.items()), "masters are not rounded"
    assert all(torch.equal(masters[name].bfloat16(), tensor) for name, tensor in exported.items()), "rounded once"
    # Three steps of a rate of at most 1e-3 each, from weights that were rounded by at most 2 ** -9 of their size.
    for name, tensor in two_bf16.one.trained.items():
        assert (masters[name] - tensor).abs().max() < 6e-3 + 2**-8 * tensor.abs().max(), name


def test_one_rank_beside_masters_has_the_numbers_of_two_in_mixed_precision(runs, model_path, rank_program, tmp_path):
    """Micro-batches differ, and with them what bf16 rounds: log-probs by 0.03 at most, norms by 3 %, weights in the mean by a
    tenth of what three steps move them by. A checkpoint of either is the other's."""
    two, one = left_behind(runs, "fsdp2-bf16"), runs.expected["one-bf16"]
    for tensors, expected in zip(two.tensors, shares_of(rank_program, one.logprobs), strict=True):
        torch.testing.assert_close(tensors["logprobs"], expected, rtol=0, atol=0.03)
    for step, expected in zip(two.metrics[0][:3], one.metrics, strict=True):
        assert step["actor_train/grad_norm"] == pytest.approx(expected["actor_train/grad_norm"], rel=0.03)
    start, ends = AutoModelForCausalLM.from_pretrained(model_path).state_dict(), []
    for checkpoint in (two.checkpoint, runs.folder / "one-bf16"):
        strategy = FSDP2Strategy(RankContext(), fsdp2_spec(model_path, **{**rank_program.OPTIONS, **rank_program.BF16}))
        strategy.load(checkpoint)
        save(strategy, tmp_path / checkpoint.parent.name)
        ends.append(saved(tmp_path / checkpoint.parent.name / "model", "model"))
        assert all(torch.equal(ends[-1][name], tensor) for name, tensor in saved(checkpoint / "model", "model").items())
    for name, tensor in ends[0].items():
        if NOISE not in name:
            assert (tensor - ends[1][name]).abs().mean() < 0.1 * (tensor - start[name]).abs().mean(), name


@pytest.mark.parametrize("stage", [2, 3])
def test_a_frozen_model(runs, stage, model_path, rank_program):
    one = runs.expected["one"]
    for rank, expected in enumerate(shares_of(rank_program, one.logprobs)):
        tensors = load_file(runs.folder / f"frozen{stage}-{rank}.safetensors")
        torch.testing.assert_close(tensors.pop("logprobs"), expected, rtol=1e-5, atol=1e-6)
        state = AutoModelForCausalLM.from_pretrained(model_path).state_dict()
        assert set(tensors) == (state.keys() - {"lm_head.weight"} if rank == 0 else set())
        assert all(torch.equal(tensor, state[name]) for name, tensor in tensors.items())
        assert "frozen (deepspeed_infer)" in (runs.folder / f"frozen{stage}-{rank}.txt").read_text()


@pytest.mark.parametrize("layout", ["fsdp2", "zero1", "zero3"])
@pytest.mark.parametrize(
    "model",
    [f"{family}-{tying}" for family in ("qwen2", "qwen3", "llama") for tying in ("tied", "untied")] + ["qwen2_moe", "qwen3_moe"],
)
def test_hugging_face_weights_come_back_bit_for_bit(runs, megatron_models, layout, model):
    given = load_file(megatron_models / model / "model.safetensors")
    got = load_file(runs.folder / f"{model}-{layout}-0.safetensors")
    assert got.keys() == given.keys()
    assert all(torch.equal(got[name], tensor) for name, tensor in given.items())


def test_stage_0_in_bf16_is_refused_also_where_only_the_device_decides_the_type(model_path, programs, tmp_path):
    pytest.importorskip("deepspeed", reason="needs requirements/deepspeed.txt")
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nfrom train_specs import train_spec\nfrom roll.core.workers.train_backends import make_train_strategy\n"
        "from roll.core.workers.train_interface import RankContext\n"
        "spec = train_spec('deepspeed_train', sys.argv[1], dtype='bf16', zero={'stage': 0})\n"
        "make_train_strategy(RankContext(), spec)"
    )
    process, log = programs.start(program, model_path)
    assert process.wait(100) == 1 and "stage 0 keeps no float32 masters" in log.read_text()

import dataclasses
import json
import math
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save_file
from saving import contents, save
from train_specs import fsdp2_spec
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Qwen2ForCausalLM

from roll.core.algorithms.loss import LossSpec, compute_loss
from roll.core.configs.losses import LossAggregation
from roll.core.workers.train_interface import RankContext
from roll.strategies.train.fsdp2 import FSDP2Strategy


@pytest.fixture
def make(model_path, rank_program):
    def build(**options):
        return FSDP2Strategy(RankContext(), fsdp2_spec(model_path, **{**rank_program.OPTIONS, **options}))

    return build


def weights(strategy):
    return {name: tensor for bucket in strategy.export_weights(1 << 20) for name, tensor in bucket.tensors.items()}


def plain_logprobs(model, tokens, temperature):
    logits = model(torch.as_tensor(tokens)[None]).logits[0, :-1] / temperature
    return torch.log_softmax(logits.float(), -1).gather(1, torch.as_tensor(tokens)[1:, None]).squeeze(1)


@pytest.mark.parametrize("trainable", [True, False])
def test_log_probs_are_those_of_a_plain_forward(make, model_path, rank_program, trainable):
    batch = rank_program.make_batch(0)
    got = make(trainable=trainable).log_probs(batch)
    model = AutoModelForCausalLM.from_pretrained(model_path).eval()
    expected = torch.zeros(batch.num_tokens)
    for start, stop in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        with torch.no_grad():
            expected[start + 1 : stop] = plain_logprobs(model, batch.tokens[start:stop].tolist(), 0.7)
    torch.testing.assert_close(got, expected * batch.loss_mask, rtol=1e-5, atol=1e-5)


def gradients_of_step(strategy, batch, loss, totals, monkeypatch):
    captured = {}
    names = {id(p): name for name, p in strategy._model.named_parameters()}

    def capture(optimizer, *args):
        for group in optimizer.param_groups:
            captured.update({names[id(p)]: p.grad.clone() for p in group["params"]})

    monkeypatch.setattr(torch.optim.AdamW, "step", capture)
    metrics = strategy.train_step(batch, loss, totals)
    return captured, metrics


@pytest.mark.parametrize("options", [{}, {"gradient_checkpointing": True}], ids=["plain", "checkpointing"])
@pytest.mark.parametrize("budget", [1, 24, 50, 1000])
def test_gradient_is_that_of_one_big_batch(make, model_path, rank_program, monkeypatch, budget, options):
    batch, loss = rank_program.make_batch(0), rank_program.LOSS
    totals = rank_program.totals(batch)
    strategy = make(max_tokens_per_microbatch=budget, max_grad_norm=math.inf, **options)
    got, metrics = gradients_of_step(strategy, batch, loss, totals, monkeypatch)

    model = AutoModelForCausalLM.from_pretrained(model_path).eval()
    padded = batch.padded()
    log_p = torch.log_softmax(model(padded.tokens, attention_mask=padded.attention_mask.long()).logits[:, :-1] / 0.7, -1)
    zero = torch.zeros(len(batch), 1)
    logprobs = torch.cat([zero, log_p.gather(2, padded.tokens[:, 1:, None]).squeeze(2)], 1)
    entropy = torch.cat([zero, -(log_p.exp() * log_p).sum(-1)], 1)
    value, _ = compute_loss(logprobs, entropy, padded, loss, totals.tokens, totals.sequences)
    value.backward()
    expected = {name: p.grad for name, p in model.named_parameters()}

    assert got.keys() == expected.keys()
    norm = torch.stack([g.norm() for g in expected.values()]).norm()
    for name, gradient in expected.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-5, atol=1e-6 * float(norm), msg=name)
    assert metrics["actor_train/grad_norm"] == pytest.approx(float(norm), rel=1e-5)
    assert metrics["actor/total_loss"] == pytest.approx(value.item(), rel=1e-5)


def test_clipping_scales_to_the_maximal_norm(make, rank_program, monkeypatch):
    batch = rank_program.make_batch(0)
    got, metrics = gradients_of_step(make(max_grad_norm=1e-3), batch, rank_program.LOSS, rank_program.totals(batch), monkeypatch)
    assert metrics["actor_train/grad_norm"] > 1e-2
    assert float(torch.stack([g.norm() for g in got.values()]).norm()) == pytest.approx(1e-3, rel=1e-5)


def test_training_raises_the_probability_of_rewarded_tokens(make, rank_program):
    strategy = make(learning_rate=1e-2, lr_scheduler_type="constant", weight_decay=0.0)
    batch = rank_program.make_batch(0)
    batch = batch.with_(advantages=batch.loss_mask.float(), behaviour_logprobs=strategy.log_probs(batch))
    before = strategy.log_probs(batch).sum()
    for _ in range(5):
        strategy.train_step(batch, LossSpec(pg_variant="vanilla"), rank_program.totals(batch))
    assert strategy.log_probs(batch).sum() > before + 10


def test_learning_rate_follows_the_schedule(make, rank_program):
    strategy = make(lr_scheduler_type="linear", warmup_steps=2, total_optimizer_steps=4)
    batch = rank_program.make_batch(0)
    steps = [strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch)) for _ in range(5)]
    assert [s["actor_train/lr"] for s in steps] == pytest.approx([0.5e-3, 1e-3, 1e-3, 0.5e-3, 0.0])


@pytest.mark.parametrize("in_parts", [False, True])
def test_the_learning_rate_follows_the_effective_sample_size(make, rank_program, in_parts):
    """The step is that of the smaller rate."""
    batch, options = rank_program.make_batch(0), {"lr_scheduler_type": "constant", "warmup_steps": 0}
    totals, loss = rank_program.totals(batch), dataclasses.replace(rank_program.LOSS, full_rate_ess=0.9)
    strategy = make(**options)
    if in_parts:
        strategy.add_gradients(batch, loss)
        step = strategy.step_on_gradients(loss, totals)
    else:
        step = strategy.train_step(batch, loss, totals)
    scale = math.sqrt(step["actor/train_infer_ess_sequence"] / 0.9)
    assert step["actor_train/lr"] == pytest.approx(1e-3 * scale) and scale < 0.9
    twin = make(**options, learning_rate=step["actor_train/lr"])
    twin.train_step(batch, rank_program.LOSS, totals)
    for name, tensor in weights(twin).items():
        torch.testing.assert_close(weights(strategy)[name], tensor, rtol=1e-5, atol=1e-7)


def test_non_finite_gradient_is_skipped(make, rank_program):
    strategy, twin = make(), make()
    batch = rank_program.make_batch(0)
    broken = dataclasses.replace(batch, advantages=batch.advantages.clone())
    broken.advantages[batch.loss_mask.nonzero()[0]] = torch.nan
    before = weights(strategy)
    metrics = strategy.train_step(broken, rank_program.LOSS, rank_program.totals(batch))
    assert metrics["actor_train/skipped_steps"] == 1
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(strategy).items())
    got = strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch))
    expected = twin.train_step(batch, rank_program.LOSS, rank_program.totals(batch))
    assert got.pop("actor_train/skipped_steps") == 1 and expected.pop("actor_train/skipped_steps") == 0
    assert got == expected
    assert all(torch.equal(a, b) for a, b in zip(weights(strategy).values(), weights(twin).values(), strict=True))


def test_saved_and_loaded_run_continues_bit_for_bit(make, model_path, rank_program, tmp_path):
    uninterrupted, first, second = make(), make(), make()
    batches = [rank_program.make_batch(seed) for seed in range(4)]

    def train(strategy, part):
        return [strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch)) for batch in part]

    expected = train(uninterrupted, batches)
    got = train(first, batches[:2])
    snapshot = first.snapshot()
    first.write(snapshot, tmp_path)
    drawn = torch.rand(3)
    train(first, batches[2:])
    written = contents(tmp_path)
    first.write(snapshot, tmp_path / "later")
    assert contents(tmp_path / "later") == written, "the steps that came between changed the snapshot"
    second.load(tmp_path)
    assert torch.equal(torch.rand(3), drawn)
    got += train(second, batches[2:])
    assert got == expected
    for name, tensor in weights(uninterrupted).items():
        assert torch.equal(weights(second)[name], tensor), name

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert type(model).__name__ == "Qwen2ForCausalLM" and model.config.tie_word_embeddings
    assert AutoTokenizer.from_pretrained(tmp_path / "model").eos_token == "t1"
    assert {p.suffix for p in tmp_path.rglob("*") if p.is_file()} <= {".json", ".safetensors", ".jinja"}
    assert json.loads((tmp_path / "trainer.json").read_text()) == {"optimizer_step": 2, "skipped_steps": 0}
    moments = load_file(tmp_path / "optimizer.safetensors")
    assert len(moments) == 2 * len(list(model.parameters()))


def test_save_before_the_first_step(make, rank_program, tmp_path):
    strategy, other = make(), make()
    save(strategy, tmp_path)
    batch = rank_program.make_batch(0)
    other.train_step(batch, rank_program.LOSS, rank_program.totals(batch))
    other.load(tmp_path)
    step = [s.train_step(batch, rank_program.LOSS, rank_program.totals(batch)) for s in (strategy, other)]
    assert step[0] == step[1]


def test_export_holds_the_state_dict_with_tied_weights_once(make, model_path):
    state = AutoModelForCausalLM.from_pretrained(model_path).state_dict()
    assert "lm_head.weight" in state
    del state["lm_head.weight"]
    buckets = list(make().export_weights(2000))
    assert len(buckets) > 1
    for bucket in buckets:
        bucket.verify()
        assert bucket.nbytes <= 2000 or len(bucket.tensors) == 1
    exported = {name: tensor for bucket in buckets for name, tensor in bucket.tensors.items()}
    assert list(exported) == list(state)
    assert all(exported[name].dtype == t.dtype and torch.equal(exported[name], t) for name, t in state.items())


def test_untied_embeddings_are_both_exported_saved_and_loaded(make, model_path, rank_program, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(model_path, tie_word_embeddings=False)
    torch.nn.init.normal_(model.lm_head.weight, std=0.2)
    untied = tmp_path / "untied"
    model.save_pretrained(untied)
    AutoTokenizer.from_pretrained(model_path).save_pretrained(untied)
    options = {**rank_program.OPTIONS}
    strategy = FSDP2Strategy(RankContext(), fsdp2_spec(untied, **options))
    batch = rank_program.make_batch(0)
    strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch))
    trained = weights(strategy)
    assert trained.keys() == model.state_dict().keys()
    save(strategy, tmp_path / "saved")
    other = FSDP2Strategy(RankContext(), fsdp2_spec(untied, **options))
    other.load(tmp_path / "saved")
    assert all(torch.equal(tensor, trained[name]) for name, tensor in weights(other).items())


def test_checkpoint_of_another_model_is_refused_and_changes_nothing(make, model_path, tmp_path):
    strategy = make()
    before = weights(strategy)
    save(strategy, tmp_path)
    config = AutoConfig.from_pretrained(model_path)
    config.intermediate_size = 8
    Qwen2ForCausalLM(config).save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=r"mlp\.gate_proj.weight' is missing or of another shape"):
        strategy.load(tmp_path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(strategy).items())


def test_deterministic_runs_are_equal_bit_for_bit(model_path, rank_program):
    batch = rank_program.make_batch(0)
    runs = []
    try:
        for _ in range(2):
            strategy = FSDP2Strategy(RankContext(deterministic=True), fsdp2_spec(model_path, **rank_program.OPTIONS))
            assert torch.are_deterministic_algorithms_enabled()
            metrics = [strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch)) for _ in range(3)]
            runs.append((metrics, weights(strategy)))
    finally:
        torch.use_deterministic_algorithms(False)
    assert runs[0][0] == runs[1][0]
    assert all(torch.equal(tensor, runs[1][1][name]) for name, tensor in runs[0][1].items())


def test_exported_weights_do_not_change_with_training(make, rank_program):
    strategy, batch = make(), rank_program.make_batch(0)
    exported = weights(strategy)
    copies = {name: tensor.clone() for name, tensor in exported.items()}
    strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch))
    assert all(torch.equal(exported[name], copies[name]) for name in copies)
    assert any(not torch.equal(weights(strategy)[name], copies[name]) for name in copies)


def test_bf16_computes_in_bf16_on_float32_masters(make, rank_program):
    strategy, batch = make(dtype="bf16"), rank_program.make_batch(0)
    exact = make().log_probs(batch)
    rough = strategy.log_probs(batch)
    assert 0 < (rough - exact).abs().max() < 0.3
    strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch))
    exported, masters = weights(strategy), strategy.snapshot().weights
    assert {p.dtype for p in strategy._model.parameters()} == {t.dtype for t in exported.values()} == {torch.bfloat16}
    assert {t.dtype for t in masters.values()} == {torch.float32}
    assert all(torch.equal(masters[name].bfloat16(), tensor) for name, tensor in exported.items()), "rounded once"
    assert any(not torch.equal(masters[name], tensor.float()) for name, tensor in exported.items()), "masters are not rounded"


def test_gradients_of_bf16_micro_batches_are_added_in_float32(make, rank_program):
    """As if each had been widened before it is added: bit for bit."""
    batch, kept, apart = rank_program.make_batch(0), [], make(dtype="bf16")
    strategy = make(dtype="bf16")
    strategy._step = lambda: kept.extend(g.clone() for g in strategy._added_gradients()) or 1.0
    strategy.train_step(batch, rank_program.LOSS, rank_program.totals(batch))
    sums = [torch.zeros_like(gradient) for gradient in kept]
    parts = apart._gradients(batch, apart._policy_loss(rank_program.LOSS, rank_program.totals(batch)))
    count = 0
    for _ in parts:
        count += 1
        for total, gradient in zip(sums, apart._added_gradients(), strict=True):
            assert gradient.dtype == torch.float32 and torch.equal(gradient.bfloat16().float(), gradient)
            total += gradient
        apart._optimizer.zero_grad()
    assert count > 1 and all(torch.equal(total, gradient) for total, gradient in zip(sums, kept, strict=True))


def test_bf16_on_one_rank_computes_what_a_model_in_bf16_computes(make, rank_program):
    """As several ranks do, and engines: not what float32 norms and residuals between bf16 matrices would give."""
    batch = rank_program.make_batch(0)
    assert torch.equal(make(dtype="bf16").log_probs(batch), make(dtype="bf16", trainable=False).log_probs(batch))


def test_frozen_model_cannot_be_trained(make, rank_program):
    batch = rank_program.make_batch(0)
    with pytest.raises(RuntimeError, match="frozen"):
        make(trainable=False).train_step(batch, rank_program.LOSS, rank_program.totals(batch))


def test_empty_batch_has_no_log_probs(make, rank_program):
    assert make().log_probs(rank_program.make_batch(0).select([])).numel() == 0


@pytest.mark.parametrize(
    ("present", "message"),
    [([], "no config.json"), (["config.json"], "no weights"), (["config.json", "model.safetensors"], "no tokenizer")],
)
def test_incomplete_model_folder_is_named(tmp_path, present, message):
    for name in present:
        if name.endswith(".json"):
            Path(tmp_path, name).write_text("{}")
        else:
            save_file({"a": torch.zeros(1)}, tmp_path / name)
    with pytest.raises(FileNotFoundError, match=message):
        FSDP2Strategy(RankContext(), fsdp2_spec(tmp_path))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        FSDP2Strategy(RankContext(), fsdp2_spec(tmp_path / "nowhere"))


def test_fp16_training_is_refused(make):
    with pytest.raises(ValueError, match="bf16"):
        make(dtype="fp16")


@pytest.mark.parametrize("mode", get_args(LossAggregation))
def test_gradients_of_parts_add_up_to_the_step_of_the_batch(make, rank_program, mode):
    """In any cut and any order, an empty part among them; what they are divided by is said at the end."""
    batch, loss = rank_program.make_batch(0), dataclasses.replace(rank_program.LOSS, aggregation=mode, norm_length=20)
    totals, at_once, in_parts = rank_program.totals(batch), make(), make()
    for _ in range(2):  # nothing of the first step is left for the second
        expected = at_once.train_step(batch, loss, totals)
        for indices in ([6, 1], [], [0, 2, 3], [5, 4]):
            in_parts.add_gradients(batch.select(indices), loss)
        assert in_parts.step_on_gradients(loss, totals) == pytest.approx(expected, rel=1e-4)
    one, other = weights(at_once), weights(in_parts)
    # Softmax does not see k_proj.bias: its gradient is rounding alone, of which AdamW makes whole steps.
    names = [name for name in one if "k_proj.bias" not in name]
    apart = torch.stack([(one[name] - other[name]).norm() for name in names]).norm()
    assert apart <= 1e-6 * torch.stack([one[name].norm() for name in names]).norm()

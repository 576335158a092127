"""Common prefixes that are computed once: the same log-probs, values and gradients as each sample by itself.

Gradients are of weights in float64: norms, which compute in float32 all the same, leave a difference of 2e-7 of their length.
With weights in float32 rounding alone makes it 1e-6.
"""

from functools import partial

import pytest
import torch
from tiny_models import numbered_tokenizer, tiny_qwen2
from train_specs import fsdp2_spec, train_spec
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, MistralConfig, MistralForCausalLM

from roll.core.algorithms.distillation import with_teachers
from roll.core.algorithms.loss import LossSpec, prepare_batch
from roll.core.algorithms.pg_variants import get_policy_loss
from roll.core.algorithms.policy_loss import traits_of
from roll.core.algorithms.value_loss import ValueLossSpec
from roll.core.configs.losses import POLICY_LOSSES
from roll.core.data.token_batch import TokenBatch
from roll.core.trainer.batch import gather, shards, shares
from roll.core.workers.train_backends import make_critic, make_train_strategy
from roll.core.workers.train_interface import BatchTotals, RankContext
from roll.strategies.train import forest_attention, hf_train, packed_attention
from roll.strategies.train.forest_attention import ForestAttention
from roll.strategies.train.layout import forest_row

PROMPT, SYSTEM, VOCABULARY = 9, 3, 37
NO_STEP = {"learning_rate": 1e-3, "max_grad_norm": 1e9, "total_optimizer_steps": 10, "dtype": "fp32"}
ALONE = {"max_tokens_per_microbatch": 1, "max_tokens_per_microbatch_infer": 1}
"""A micro-batch for each sample."""
ALL_TERMS = LossSpec(pg_variant="ppo", kl_loss_coef=0.1, entropy_coef=0.01)
TOGETHER = {"max_tokens_per_microbatch": 4096, "max_tokens_per_microbatch_infer": 4096}


def batch_of(rows, first_trained, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([len(row) for row in rows])
    mask = torch.cat([torch.arange(len(row)) >= first for row, first in zip(rows, first_trained, strict=True)])
    count = int(lengths.sum())

    def values():
        return torch.randn(count, generator=generator) * mask

    return TokenBatch(
        lengths=lengths,
        scores=torch.rand(len(rows), generator=generator),
        temperatures=0.5 + torch.rand(len(rows), generator=generator),
        tokens=torch.cat(rows),
        loss_mask=mask,
        behaviour_logprobs=(-3.5 + 0.3 * values()) * mask,
        proximal_logprobs=(-3.5 + 0.3 * values()) * mask,
        reference_logprobs=(-3.5 + 0.3 * values()) * mask,
        advantages=values(),
        values=values(),
        returns=values(),
    )


def groups(seed=0):
    """Three prompts behind one system message, four responses to each: one of a token, two equal ones, one that another begins
    with."""
    generator = torch.Generator().manual_seed(seed)
    some = partial(torch.randint, 2, VOCABULARY, generator=generator)
    system = some((SYSTEM,))
    rows = []
    for _ in range(3):
        prompt, long = torch.cat([system, some((PROMPT - SYSTEM,))]), some((12,))
        rows += [torch.cat([prompt, part]) for part in (long[:1], long, some((7,)), long, long[:6])]
    order = torch.randperm(len(rows), generator=generator).tolist()
    return batch_of([rows[i] for i in order], [PROMPT] * len(rows), seed)


def episodes(seed=0):
    """Two episodes of five turns, a sample each: the next turn's prompt is all that has been said, and an observation."""
    generator = torch.Generator().manual_seed(seed)
    some = partial(torch.randint, 2, VOCABULARY, generator=generator)
    rows, first = [], []
    for _ in range(2):
        said = some((5,))
        for _ in range(5):
            first.append(len(said))
            said = torch.cat([said, some((4,))])
            rows.append(said)
            said = torch.cat([said, some((3,))])
    return batch_of(rows, first, seed)


def totals(batch):
    return BatchTotals(int(batch.loss_mask.sum()), len(batch))


def gradients(strategy, batch, step):
    """Of one step in float64, by parameter; the weights stay."""
    kept = {}
    strategy._model.double()

    def keep():
        kept.update({name: p.grad.clone() for name, p in strategy._model.named_parameters()})
        strategy._optimizer.zero_grad()
        return 1.0

    strategy._step = keep
    step(strategy, batch)
    return kept


def distance(some, other):
    """Of two gradients, as a share of the length of one."""
    square = sum(float((some[name] - other[name]).double().square().sum()) for name in other)
    return (square / sum(float(tensor.double().square().sum()) for tensor in other.values())) ** 0.5


def mistral(folder, window):
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 8}
    torch.manual_seed(0)
    config = MistralConfig(vocab_size=VOCABULARY, num_key_value_heads=1, sliding_window=window, initializer_range=0.2, **sizes)
    model = MistralForCausalLM(config).eval()
    model.save_pretrained(folder)
    numbered_tokenizer(VOCABULARY).save_pretrained(folder)
    return model


def policy_step(strategy, batch, loss=ALL_TERMS):
    return strategy.train_step(prepare_batch(batch, loss), loss, totals(batch))


@pytest.mark.parametrize("batch", [groups(), episodes()], ids=["groups", "episodes"])
@pytest.mark.parametrize("family", ["qwen2-tied", "qwen3-untied", "llama-untied"])
def test_prefixes_change_no_number(family_models, family, batch):
    alone = make_train_strategy(RankContext(), fsdp2_spec(family_models / family, **NO_STEP, **ALONE))
    together = make_train_strategy(RankContext(), fsdp2_spec(family_models / family, **NO_STEP, **TOGETHER))
    torch.testing.assert_close(together.log_probs(batch), alone.log_probs(batch), rtol=2e-6, atol=2e-6)
    assert distance(gradients(together, batch, policy_step), gradients(alone, batch, policy_step)) < 1e-6


@pytest.mark.parametrize("variant", sorted(POLICY_LOSSES))
def test_every_loss_has_the_gradient_of_single_samples(model_path, variant):
    batch, loss = groups(), LossSpec(pg_variant=variant, aggregation="seq-mean-token-mean")
    if not traits_of(get_policy_loss(variant)).needs_proximal:
        batch.proximal_logprobs = None
    step = partial(policy_step, loss=loss)
    alone = gradients(make_train_strategy(RankContext(), fsdp2_spec(model_path, **NO_STEP, **ALONE)), batch, step)
    together = gradients(make_train_strategy(RankContext(), fsdp2_spec(model_path, **NO_STEP, **TOGETHER)), batch, step)
    assert distance(together, alone) < 1e-6


def test_without_borders_the_numbers_are_others(model_path, monkeypatch):
    """That the comparison sees attention across samples."""

    def across(forest, query, key, value, scaling, window):
        forest.layers += 1
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        return out.transpose(1, 2)

    batch = groups()
    strategy = make_train_strategy(RankContext(), fsdp2_spec(model_path, **NO_STEP, **TOGETHER))
    right = gradients(strategy, batch, policy_step)
    monkeypatch.setattr(ForestAttention, "__call__", across)
    assert distance(gradients(strategy, batch, policy_step), right) > 0.1


def test_each_prefix_is_computed_once():
    batch = groups()
    rows = forest_row(batch.select(sorted(range(len(batch)), key=lambda i: batch.select([i]).tokens.tolist())).padded())
    prefixes = {tuple(row[: i + 1]) for row in batch.tokens.split(batch.lengths.tolist()) for i in range(len(row))}
    distinct = {tuple(int(token) for token in prefix) for prefix in prefixes}
    assert rows.tokens.numel() == len(distinct) < batch.num_tokens / 2


def test_long_responses_attend_in_pieces(model_path, monkeypatch):
    batch = groups()
    whole = make_train_strategy(RankContext(), fsdp2_spec(model_path, **NO_STEP, **TOGETHER))
    expected = gradients(whole, batch, policy_step)
    monkeypatch.setattr(forest_attention, "LONGEST_QUERY", 3)
    monkeypatch.setattr(forest_attention, "SMALL_CALL", 0)
    assert distance(gradients(whole, batch, policy_step), expected) < 1e-6


@pytest.mark.parametrize("window", [4, 64])
def test_windows_of_attention_reach_as_far_as_in_single_samples(tmp_path, window):
    model = mistral(tmp_path, window)
    batch = groups()
    found = make_train_strategy(RankContext(), fsdp2_spec(tmp_path, **NO_STEP, **TOGETHER)).log_probs(batch)
    rows = batch.tokens.split(batch.lengths.tolist())
    for row, temperature, said in zip(rows, batch.temperatures, found.split(batch.lengths.tolist()), strict=True):
        with torch.no_grad():
            log_p = torch.log_softmax(model(input_ids=row[None]).logits[0, :-1] / temperature, -1)
        expected = log_p.gather(1, row[1:, None]).squeeze(1)[PROMPT - 1 :]
        torch.testing.assert_close(said[PROMPT:], expected, rtol=1e-5, atol=1e-5)
    alone = make_train_strategy(RankContext(), fsdp2_spec(tmp_path, **NO_STEP, **ALONE))
    together = make_train_strategy(RankContext(), fsdp2_spec(tmp_path, **NO_STEP, **TOGETHER))
    assert distance(gradients(together, batch, policy_step), gradients(alone, batch, policy_step)) < 1e-6


def sequences_of_any_lengths(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale, window_size, enable_gqa):
    """The kernel of accelerators, as FlashAttention documents it: the last query of a sequence stands at its last key."""
    (left, right), outputs = window_size, []
    assert right == 0 and cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert (max_q, max_k) == (int(cu_seq_q.diff().max()), int(cu_seq_k.diff().max()))
    for asked, known in zip(cu_seq_q.unfold(0, 2, 1).tolist(), cu_seq_k.unfold(0, 2, 1).tolist(), strict=True):
        q, k, v = (part[slice(*ends)].transpose(0, 1) for part, ends in ((query, asked), (key, known), (value, known)))
        at = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
        seen = torch.arange(k.shape[1]) <= at
        if left >= 0:
            seen &= torch.arange(k.shape[1]) >= at - left
        attend = partial(torch.nn.functional.scaled_dot_product_attention, scale=scale, enable_gqa=enable_gqa)
        outputs.append(attend(q[None], k[None], v[None], attn_mask=seen)[0].transpose(0, 1))
    return torch.cat(outputs)


@pytest.fixture
def packed(monkeypatch):
    """Strategies attend as on accelerators, by a stand-in of their kernel."""
    monkeypatch.setattr(packed_attention, "varlen_attn", sequences_of_any_lengths)
    monkeypatch.setattr(hf_train, "packs", lambda device, dtype, config: True)


@pytest.mark.parametrize("batch", [groups(), episodes()], ids=["groups", "episodes"])
def test_one_call_for_all_samples_changes_no_number(model_path, packed, monkeypatch, batch):
    together = make_train_strategy(RankContext(), fsdp2_spec(model_path, **NO_STEP, **TOGETHER))
    found, gradient = together.log_probs(batch), gradients(together, batch, policy_step)
    monkeypatch.undo()
    alone = make_train_strategy(RankContext(), fsdp2_spec(model_path, **NO_STEP, **ALONE))
    torch.testing.assert_close(found, alone.log_probs(batch), rtol=2e-6, atol=2e-6)
    assert distance(gradient, gradients(alone, batch, policy_step)) < 1e-6


@pytest.mark.parametrize("window", [4, 64])
def test_one_call_knows_windows(tmp_path, packed, monkeypatch, window):
    batch = groups()
    mistral(tmp_path, window)
    together = make_train_strategy(RankContext(), fsdp2_spec(tmp_path, **NO_STEP, **TOGETHER))
    gradient = gradients(together, batch, policy_step)
    monkeypatch.undo()
    alone = make_train_strategy(RankContext(), fsdp2_spec(tmp_path, **NO_STEP, **ALONE))
    assert distance(gradient, gradients(alone, batch, policy_step)) < 1e-6


def test_keys_are_copied_only_where_something_is_shared():
    rows = [torch.arange(5), torch.arange(9, 16), torch.arange(3, 6)]
    assert forest_row(batch_of(rows, [1, 1, 1]).padded(), packed=True).arguments["forest"]._paths is None
    rows.append(torch.arange(3, 12))
    attention = forest_row(batch_of(rows, [1, 1, 1, 1]).padded(), packed=True).arguments["forest"]
    assert attention._paths.tolist() == [*range(12), *range(12, 15), *range(12, 15), *range(15, 21)]


@pytest.mark.parametrize("shared", [0, 4])
def test_the_kernel_itself_takes_what_it_is_given(shared):
    """By its own declaration, forward and backward, where no device is needed: shapes and arguments, not numbers."""
    index = torch.stack([torch.arange(12), torch.cat([torch.arange(shared), torch.arange(12, 24 - shared)])])
    attention = packed_attention.PackedAttention(index, [12, 12], [0, shared]).each(lambda tensor: tensor.to("meta"))
    tokens = 24 - shared
    q, k, v = (torch.empty(1, tokens, heads, 64, device="meta", requires_grad=True) for heads in (4, 2, 2))
    out = attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), None, 8)
    out.sum().backward()
    assert out.shape == q.grad.shape == q.shape and k.grad.shape == v.grad.shape == k.shape


def test_only_accelerators_that_have_the_kernel_use_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    config = Gemma2Config(hidden_size=64, num_attention_heads=2, head_dim=32)
    assert packed_attention.packs(torch.device("cuda"), torch.bfloat16, config)
    assert not packed_attention.packs(torch.device("cpu"), torch.bfloat16, config)
    assert not packed_attention.packs(torch.device("cuda"), torch.float32, config)
    for head in (320, 36):  # too wide, and no multiple of 8
        config.head_dim = head
        assert not packed_attention.packs(torch.device("cuda"), torch.bfloat16, config)
    config.head_dim = 32
    monkeypatch.setattr(packed_attention, "varlen_attn", lambda query, key, value, is_causal: query)  # as in torch 2.10
    assert not packed_attention.packs(torch.device("cuda"), torch.bfloat16, config)


def test_padding_sees_something():
    """Some kernels make NaN of a query that sees nothing, and of its gradient."""
    first = torch.arange(12)
    rows = [first, torch.cat([first[:10], torch.tensor([30])]), torch.cat([first[:2], torch.arange(20, 29)])]
    attention = forest_row(batch_of(rows, [1, 1, 1]).padded()).arguments["forest"]
    masks = [attention._mask(number, torch.float32, 2) for number in range(len(attention._calls))]
    assert any(mask is not None for mask in masks)
    assert all((mask == 0).any(-1).all() for mask in masks if mask is not None)


@pytest.mark.parametrize("options", [{"lora_target": "q_proj,down_proj"}, {"disable_gradient_checkpointing": False}])
def test_adapters_and_recomputed_activations(model_path, options):
    batch = groups()
    alone = make_train_strategy(RankContext(), fsdp2_spec(model_path, **NO_STEP, **ALONE, **options))
    together = make_train_strategy(RankContext(), fsdp2_spec(model_path, **NO_STEP, **TOGETHER, **options))

    def norm(strategy):
        return policy_step(strategy, batch)["actor_train/grad_norm"]

    assert norm(together) == pytest.approx(norm(alone), rel=2e-6)
    torch.testing.assert_close(together.log_probs(batch), alone.log_probs(batch), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("strategy", ["fsdp2_train", "deepspeed_train"])
def test_values_of_states(model_path, strategy):
    batch = episodes()

    def after_a_step(options):
        critic = make_critic(RankContext(), train_spec(strategy, model_path, **NO_STEP, **options))
        critic.train_values(batch, ValueLossSpec(), totals(batch))  # the head is 0 at first
        values = critic.values(batch)
        critic.close()
        return values

    torch.testing.assert_close(after_a_step(TOGETHER), after_a_step(ALONE), rtol=1e-5, atol=1e-6)


def test_models_that_mix_tokens_otherwise_keep_their_rows(tmp_path):
    """Gemma 2 caps its attention's logits, which torch's kernel cannot."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 8}
    torch.manual_seed(0)
    Gemma2ForCausalLM(Gemma2Config(vocab_size=VOCABULARY, num_key_value_heads=1, **sizes)).save_pretrained(tmp_path)
    numbered_tokenizer(VOCABULARY).save_pretrained(tmp_path)
    strategy = make_train_strategy(RankContext(), fsdp2_spec(tmp_path, **NO_STEP, **TOGETHER))
    batch = groups()
    assert strategy._scorer.layout(batch.padded()).tokens.shape == (len(batch), int(batch.lengths.max()))


def test_a_layer_that_does_not_ask_for_attention_is_an_error(tmp_path, monkeypatch):
    model = tiny_qwen2(VOCABULARY)
    model.save_pretrained(tmp_path)
    numbered_tokenizer(VOCABULARY).save_pretrained(tmp_path)
    strategy = make_train_strategy(RankContext(), fsdp2_spec(tmp_path, **NO_STEP, **TOGETHER))
    layer = strategy._model.model.layers[0]
    monkeypatch.setattr(layer.self_attn, "forward", lambda hidden_states, **_: (hidden_states, None))
    with pytest.raises(ValueError, match=r"1 of 2 layers of a qwen2.*attn_implementation: eager"):
        strategy.log_probs(groups())


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A folder of the policy's vocabulary, with a larger model."""
    folder = tmp_path_factory.mktemp("teacher")
    tiny_qwen2(VOCABULARY, seed=5, hidden_size=32, num_attention_heads=4, initializer_range=0.3).save_pretrained(folder)
    numbered_tokenizer(VOCABULARY).save_pretrained(folder)
    return folder


def plain_logprobs(folder, batch):
    """The model in float64, and its log-probs of each row by itself, [N]; 0 at first tokens."""
    model, found = AutoModelForCausalLM.from_pretrained(folder).double(), []
    for row, temperature in zip(batch.rows, batch.temperatures, strict=True):
        tokens = torch.tensor(row)[None]
        scores = (model(tokens).logits / temperature.double()).log_softmax(-1)[0, :-1]
        found.append(torch.cat([scores.new_zeros(1), scores.gather(1, tokens[0, 1:, None])[:, 0]]))
    return model, torch.cat(found)


@pytest.mark.parametrize("packed", [ALONE, TOGETHER], ids=["alone", "together"])
def test_what_a_teacher_teaches_is_the_gradient_of_plain_torch(model_path, teacher, packed):
    """The teacher scores in float32: 1e-5."""
    batch, loss = groups().with_(proximal_logprobs=None), LossSpec(pg_variant="reinforce", aggregation="token-mean")
    mask, of_teacher = batch.loss_mask, plain_logprobs(teacher, batch)[1].detach()
    frozen = make_train_strategy(RankContext(), train_spec("fsdp2_infer", teacher, dtype="fp32", **packed))
    scored = frozen.log_probs(batch)
    torch.testing.assert_close(scored[mask].double(), of_teacher[mask], rtol=0, atol=1e-5)
    lesson = batch.with_(teacher_logprobs=scored, teacher_weights=torch.ones(len(batch)))
    lesson = lesson.with_(advantages=with_teachers(lesson, torch.zeros(batch.num_tokens))[0])
    student = make_train_strategy(RankContext(), fsdp2_spec(model_path, **NO_STEP, **packed))
    found = gradients(student, lesson, partial(policy_step, loss=loss))
    plain, log_probs = plain_logprobs(model_path, batch)
    divergence = batch.behaviour_logprobs.double() - of_teacher
    ((divergence * log_probs)[mask].sum() / mask.sum()).backward()
    wanted = {name: parameter.grad for name, parameter in plain.named_parameters()}
    assert distance(found, wanted) < 1e-5


def test_two_ranks_of_a_teacher_score_as_one(teacher):
    batch, frozen = groups(), make_train_strategy(RankContext(), train_spec("fsdp2_infer", teacher, dtype="fp32"))
    parts = [frozen.log_probs(part) for part in shards(batch, 2)]
    together = gather(parts, batch, shares(batch, 2))
    torch.testing.assert_close(together[batch.loss_mask], frozen.log_probs(batch)[batch.loss_mask], rtol=0, atol=2e-6)

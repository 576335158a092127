"""The sizes and bytes that `roll check` tells, against real models: parameters, what autograd keeps, optimiser, KV cache."""

import dataclasses
import json

import pytest
import torch
from alive import Alive
from train_specs import fsdp2_spec
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from roll.core.algorithms.loss import LossSpec
from roll.core.configs.arguments import KV_BLOCK
from roll.core.data.token_batch import TokenBatch
from roll.plan import memory
from roll.plan.model_shape import shape_of
from roll.prepare.fitting import read_model_folder
from roll.strategies.infer.hf.block_cache import BlockCache
from roll.strategies.infer.hf.slot_cache import SlotCache
from roll.strategies.infer.hf.slot_model import SlotModel
from roll.strategies.train.logprobs import head_logprobs
from roll.strategies.train.scorer import TokenScorer

SIZES = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 160, "vocab_size": 48}
CONFIGS = {
    "qwen2": Qwen2Config(**SIZES, num_key_value_heads=2),
    "qwen2 tied": Qwen2Config(**SIZES, num_key_value_heads=1, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=24),
    "qwen3 biased": Qwen3Config(**SIZES, num_key_value_heads=4, head_dim=16, attention_bias=True, tie_word_embeddings=True),
    "llama": LlamaConfig(**SIZES, num_key_value_heads=4),
    "llama biased": LlamaConfig(**SIZES, num_key_value_heads=2, attention_bias=True, mlp_bias=True),
    "mistral": MistralConfig(**SIZES, num_key_value_heads=2, head_dim=16),
}
"""As transformers itself builds them."""


def written(config, folder):
    """What `save_pretrained` writes into config.json: only what differs from the defaults may be there."""
    config.save_pretrained(folder)
    return json.loads((folder / "config.json").read_text())


def build(config, dtype=torch.float32, attention="sdpa"):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype).eval()


@pytest.mark.parametrize("name", CONFIGS)
def test_the_parameter_count_is_that_of_the_real_model(name, tmp_path):
    shape = shape_of(written(CONFIGS[name], tmp_path))
    model = build(CONFIGS[name])
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    assert shape.layer_parameters == sum(p.numel() for p in model.model.layers[0].parameters())


def test_a_model_folder_gives_shape_and_the_exact_count_of_its_weight_files(tmp_path):
    model = build(CONFIGS["qwen2 tied"])
    model.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    files = read_model_folder(str(tmp_path))
    assert files.stored_parameters == shape_of(files.config).parameters == sum(p.numel() for p in model.parameters())
    assert files.note == ""


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda folder: None, "is not there"),
        (lambda folder: folder.mkdir(), "has no config.json"),
        (lambda folder: (folder.mkdir(), (folder / "config.json").write_text("{")), "cannot be read"),
        (lambda folder: (folder.mkdir(), (folder / "config.json").write_text("[]")), "cannot be read"),
    ],
)
def test_a_folder_without_a_model_is_told(tmp_path, spoil, told):
    spoil(tmp_path / "model")
    files = read_model_folder(str(tmp_path / "model"))
    assert files.config is None
    assert told in files.note


def test_a_damaged_weight_file_leaves_the_formulas_count(tmp_path):
    build(CONFIGS["llama"]).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    files = read_model_folder(str(tmp_path))
    assert files.stored_parameters is None
    assert files.config is not None
    assert "model.safetensors" in files.note


@pytest.mark.parametrize("config", [{"model_type": "mamba"}, {}, {"model_type": "qwen2", **SIZES, "vocab_size": None}])
def test_an_architecture_without_formula_is_an_error_that_says_what_is_known(config):
    with pytest.raises(ValueError, match=r"qwen2, qwen3, llama|vocab_size"):
        shape_of(config)


def kept_by_autograd(model, rows, sequence, response, shared=0):
    """Bytes that the backward pass of a real forward holds, without the parameters themselves. `shared`: first tokens that all
    samples have."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    tokens = torch.randint(0, model.config.vocab_size, (rows, sequence))
    tokens[:, :shared] = tokens[:1, :shared]
    tokens[:, shared] = torch.arange(rows)
    mask = (torch.arange(sequence) >= sequence - response).repeat(rows)
    nothing = torch.zeros(rows * sequence)
    scorer = TokenScorer(model)
    batch = TokenBatch(
        torch.full((rows,), sequence), torch.zeros(rows), torch.ones(rows), tokens.flatten(), mask, nothing, nothing
    )
    layout = scorer.layout(batch.padded())
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        values, _ = scorer.logprobs(model, batch.padded(), layout, "none")
    assert values.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("shared", [0, 64])
def test_activations_a_layer_are_what_autograd_keeps(name, dtype, shared):
    """The difference of 4 and 2 layers is free of what stands around the layers. Tolerance 1 %: small masks."""
    rows, sequence, response = 4, 96, 32
    measured = []
    for layers in (2, 4):
        model = build(CONFIGS[name].__class__(**{**CONFIGS[name].to_dict(), "num_hidden_layers": layers, "layer_types": None}))
        measured.append(kept_by_autograd(model.to(dtype), rows, sequence, response, shared))
    shape = shape_of(CONFIGS[name].to_dict())
    micro = memory.microbatch(10_000, rows, sequence, response, group=rows if shared else 1)
    model, layout = memory.Model(shape, shape.parameters), memory.ModelLayout()
    formula = memory.activations(model, layout, micro, dtype.itemsize, False, "forest").bytes / shape.layers
    assert (measured[1] - measured[0]) / 2 == pytest.approx(formula, rel=0.01)


def test_eager_attention_keeps_its_matrices():
    """Tolerance 2 %."""
    rows, sequence = 1, 256
    config = Qwen2Config(**{**SIZES, "num_hidden_layers": 2}, num_key_value_heads=4)
    kept = kept_by_autograd(build(config, attention="eager"), rows, sequence, 8)
    without = kept_by_autograd(build(config, attention="sdpa"), rows, sequence, 8)
    shape = shape_of(config.to_dict())
    more = [memory.layer_bytes(shape, sequence, 4, kind) for kind in ("eager", "forest")]
    assert kept - without == pytest.approx(2 * rows * sequence * (more[0] - more[1]), rel=0.02)


@pytest.mark.parametrize("fp32", [True, False])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_head_is_what_is_alive_at_its_peak(dtype, train, fp32):
    """Tolerance 3 %: numbers of a row. The weights' gradient stands in lines of its own."""
    shape = dataclasses.replace(shape_of(CONFIGS["qwen2"].to_dict()), vocab=20_000)
    micro = memory.Microbatch(2, 96, 64)
    weight = torch.randn(shape.vocab, shape.hidden, dtype=dtype)
    states = torch.randn(2 * 96, shape.hidden, dtype=dtype, requires_grad=train)
    targets = torch.randint(shape.vocab, (micro.predicted,))
    with Alive() as alive:
        chosen = states.index_select(0, torch.arange(micro.predicted))
        values, _ = head_logprobs(chosen, weight, None, targets, torch.ones(micro.predicted), "detached", fp32=fp32)
        if train:
            torch.autograd.grad(values.sum(), chosen)
    part = memory.head(memory.Model(shape, shape.parameters), memory.ModelLayout(), micro, dtype.itemsize, train, fp32=fp32)
    assert alive.peak == pytest.approx(part.bytes, rel=0.03)


def test_recomputing_keeps_the_inputs_of_the_layers_and_one_layer():
    shape = shape_of(CONFIGS["qwen2"].to_dict())
    model, micro = memory.Model(shape, shape.parameters), memory.Microbatch(2, 96, 32)
    full = memory.activations(model, memory.ModelLayout(), micro, 4, False, "plain").bytes
    less = memory.activations(model, memory.ModelLayout(), micro, 4, True, "plain").bytes
    assert less == full // 3 + 3 * 2 * 96 * 64 * 4


def test_weights_gradients_and_moments_are_those_of_a_real_trainer(trainer):
    strategy, model = trainer
    parts = {part.name: part.bytes for part in memory.trained_weights(model, memory.ModelLayout(), 4)}
    held = list(strategy._model.parameters())
    assert parts["weights"] == parts["gradients"] == sum(p.numel() * p.element_size() for p in held)
    moments = [state[name] for state in strategy._optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert parts["optimiser"] == sum(m.numel() * m.element_size() for m in moments)
    assert parts.keys() == {"weights", "gradients", "optimiser"}


@pytest.mark.parametrize("rank", [None, 4])
def test_the_snapshot_is_that_of_a_real_trainer(make_trainer, rank):
    strategy, model = make_trainer(**({} if rank is None else {"lora_target": "all-linear", "lora_rank": rank}))
    if rank is not None:
        model = dataclasses.replace(model, adapters=model.shape.adapter_parameters("all-linear", rank))
    snapshot = strategy.snapshot()
    held = [*snapshot.weights.values(), *snapshot.moments.values()]
    assert memory.snapshot(model, 4).bytes == sum(tensor.nbytes for tensor in held)


@pytest.fixture
def trainer(make_trainer):
    return make_trainer()


@pytest.fixture
def make_trainer(tmp_path, tokenizer_file):
    """A trainer after a step, and what `roll check` knows of its model."""
    from roll.core.workers.train_interface import BatchTotals, RankContext
    from roll.strategies.train.fsdp2 import FSDP2Strategy

    build(CONFIGS["qwen2"]).save_pretrained(tmp_path)
    tokenizer_file(tmp_path)
    context = RankContext(
        rank=0, world_size=1, master_addr="127.0.0.1", master_port=0, device="cpu", threads=1, seed=0, deterministic=False
    )
    shape = shape_of(json.loads((tmp_path / "config.json").read_text()))
    count = 12
    batch = TokenBatch(
        lengths=torch.tensor([count]),
        scores=torch.ones(1),
        temperatures=torch.ones(1),
        tokens=torch.arange(count),
        loss_mask=torch.arange(count) > 3,
        behaviour_logprobs=torch.full((count,), -3.0),
        advantages=torch.ones(count),
    )

    def make(**options):
        strategy = FSDP2Strategy(context, fsdp2_spec(tmp_path, **options))
        strategy.train_step(batch, LossSpec(), BatchTotals(tokens=8, sequences=1))
        return strategy, memory.Model(shape, shape.parameters)

    return make


@pytest.fixture
def tokenizer_file():
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    def write(folder):
        PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, unk_token="a"))).save_pretrained(folder)

    return write


def test_the_kv_cache_is_that_of_the_engine():
    config = CONFIGS["qwen3"]
    shape = shape_of(config.to_dict())
    cache = SlotCache(slots=5, max_length=70, num_layers=shape.layers)
    cache.begin_prefill(0, 1, 70)
    build(config)(input_ids=torch.zeros(1, 70, dtype=torch.long), past_key_values=cache, use_cache=True)
    model = memory.Model(shape, shape.parameters)
    assert memory.kv_cache(model, 5, 70, 4).bytes == cache.nbytes
    assert memory.kv_cache(model, 9, 70, 4, most=399).bytes == cache.nbytes


@pytest.mark.parametrize(("tokens", "blocks"), [(None, 3 * 3 + 1), (1800, 7 + 1), (600, 3 + 1)])
def test_the_blocks_of_a_full_cache_are_those_of_the_engine(tokens, blocks):
    """Rows of full length, as many as there is room for."""
    shape = shape_of(CONFIGS["qwen3"].to_dict())
    cache = BlockCache(3, 700, shape.layers, torch.device("cpu"), KV_BLOCK, tokens)
    spans = [(slot, 0, 700) for slot in range(3)]
    assert cache.own(spans) == (tokens is None)
    cache.begin_prefill(0, 1, 700)
    build(CONFIGS["qwen3"])(input_ids=torch.zeros(1, 700, dtype=torch.long), past_key_values=cache, use_cache=True)
    assert cache.pool == blocks
    assert memory.kv_blocks(memory.Model(shape, shape.parameters), 3, 700, 4, tokens).bytes == cache.nbytes


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_token_step_needs_no_more_than_a_layer_keeps_for_training(name, dtype):
    """That is the part of a graph's memory that grows with its rows; the mask and the positions' angles are beside it."""
    shape, rows = shape_of(CONFIGS[name].to_dict()), 64
    model = SlotModel(build(CONFIGS[name]).to(dtype), rows, 32)
    slots = type("Inputs", (), {"tokens": torch.ones(rows).long(), "positions": torch.zeros(rows).long()})
    slots.slots = torch.arange(rows)
    model.cache.reserve(2)
    with torch.inference_mode():
        model._padded_step(slots, 2)
        with Alive() as alive:
            model._padded_step(slots, 2)
    each = memory.layer_bytes(shape, 1, dtype.itemsize, "plain")
    assert 0.2 * rows * each < alive.peak <= rows * each
    graphs = memory.decode_graphs(memory.Model(shape, shape.parameters), rows, 700, dtype.itemsize, True)
    outputs = sum((1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)) * shape.hidden * dtype.itemsize
    assert graphs.bytes == rows * each + memory.WORKSPACE + outputs


@pytest.mark.parametrize(
    "target", ["all-linear", "q_proj, v_proj", "down_proj", r"model\.layers\.[01]\..*_proj", "lm_head,k_proj"]
)
@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_adapters_are_those_that_peft_adds(name, target):
    from roll.strategies.train.lora import Adapters

    model = build(CONFIGS[name])
    Adapters(model, target, rank=3, alpha=6.0)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert shape_of(CONFIGS[name].to_dict()).adapter_parameters(target, 3) == trained > 0


def test_only_adapters_have_gradients_and_moments():
    shape = shape_of(CONFIGS["llama"].to_dict())
    model = memory.Model(shape, shape.parameters, adapters=1000)
    parts = {part.name: part.bytes for part in memory.trained_weights(model, memory.ModelLayout(), 2)}
    gathered = 2 * (shape.outer_parameters + 2 * shape.layer_parameters)
    trained = {"weights": 4000, "gradients": 4000, "optimiser": 8000}
    assert parts == {"frozen weights": 2 * shape.parameters, **trained, "gathered": gathered}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zero_keeps_masters_of_its_own_and_divides_by_stage(stage):
    """ZeRO (arXiv 1910.02054, figure 1) with float32 gradient sums: of 2 + 4 + 12 bytes a parameter one after the other."""
    shape = shape_of(CONFIGS["llama"].to_dict())
    layout = memory.ModelLayout(
        data=4, shard_weights=stage >= 3, shard_gradients=stage >= 2, shard_optimizer=stage >= 1, masters=True
    )
    parts = {part.name: part.bytes for part in memory.trained_weights(memory.Model(shape, shape.parameters), layout, 2)}
    expected = {
        "optimiser": 12 / (4 if stage else 1),
        "gradients": 4 / (4 if stage > 1 else 1),
        "weights": 2 / (4 if stage > 2 else 1),
    }
    assert {name: parts[name] / shape.parameters for name in expected} == pytest.approx(expected, rel=1e-3)
    assert ("gathered" in parts) == (stage == 3)


def test_sharding_divides_and_nothing_is_lost():
    shape = shape_of(CONFIGS["llama"].to_dict())
    model = memory.Model(shape, shape.parameters)
    alone = memory.total(memory.trained_weights(model, memory.ModelLayout(), 4))
    for ranks in (2, 4, 8):
        parts = memory.trained_weights(model, memory.ModelLayout(data=ranks), 4)
        share = sum(part.bytes for part in parts if part.name != "gathered")
        assert 0 <= share * ranks - alone < 3 * ranks
    zero1 = memory.trained_weights(model, memory.ModelLayout(data=4, shard_weights=False, shard_gradients=False), 4)
    assert {part.name: part.bytes for part in zero1} == {
        "weights": 4 * model.parameters,
        "gradients": 4 * model.parameters,
        "optimiser": 2 * model.parameters,
    }

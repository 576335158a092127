"""The arithmetic that `roll check` shows, against what the run really does: planning of batches, schedules, admission."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.derived import derive
from roll.core.configs.rlvr import RLVRConfig
from roll.core.data.microbatches import Forest, plan_microbatches
from roll.core.groups.admission import Admission
from roll.plan.counts import quantities, validations
from roll.plan.memory import Model
from roll.plan.memory_plan import CONTEXT, GRAPHS
from roll.plan.model_shape import ModelShape
from roll.plan.plan import make_plan, model_folders
from roll.plan.rules.loading import load_config
from roll.plan.rules.validation import check_config

SHAPE = ModelShape(
    layers=4, hidden=64, intermediate=128, heads=4, kv_heads=2, head_dim=16, vocab=100, tied=False,
    qkv_bias=True, output_bias=False, mlp_bias=False, qk_norm=False,
)  # fmt: skip
MODEL = Model(SHAPE, SHAPE.parameters)


def rlvr(devices="0", engines="0", **keys) -> RLVRConfig:
    return load_config(
        RLVRConfig,
        {
            "pretrain": "model",
            "rollout_batch_size": 8,
            "num_return_sequences_in_group": 4,
            "prompt_length": 16,
            "response_length": 16,
            "max_steps": 10,
            "actor_infer": {"device_mapping": engines},
            "rewards": {"math": {"worker_cls": "a.B"}},
            **keys,
            "actor_train": {
                "device_mapping": devices,
                "data_args": {"file_name": "train.jsonl"},
                "training_args": {"per_device_train_batch_size": 4},
                **keys.get("actor_train", {}),
            },
        },
    )


def plan_of(config, devices=8, accelerators=False, model=MODEL):
    assert check_config(config, devices) == []
    return make_plan(config, devices, dict.fromkeys(model_folders(config), model), accelerators)


def amounts(config, data_parallel=1):
    return {each.name: each for each in quantities(config, derive(config), data_parallel)}


@given(
    groups=st.integers(1, 12),
    size=st.integers(1, 6),
    ranks=st.integers(1, 4),
    per_device=st.integers(1, 4),
    accumulated=st.integers(1, 3),
    epochs=st.integers(1, 3),
    steps=st.integers(1, 50),
    budget=st.integers(1, 200),
)
def test_steps_and_micro_batches_are_those_of_the_trainer(groups, size, ranks, per_device, accumulated, epochs, steps, budget):
    batch = per_device * accumulated * ranks
    groups *= batch // math.gcd(batch, groups * size)
    config = rlvr(
        devices=f"0-{ranks - 1}",
        engines="7",
        rollout_batch_size=groups,
        num_return_sequences_in_group=size,
        max_steps=steps,
        ppo_epochs=epochs,
        adv_estimator="reinforce",
        actor_train={
            "training_args": {"per_device_train_batch_size": per_device, "gradient_accumulation_steps": accumulated},
            "max_tokens_per_microbatch_in_train": budget,
        },
    )
    found = amounts(config, ranks)
    samples = groups * size
    assert (found["prompts"].step, found["samples"].step) == (groups, samples)
    assert found["optimiser steps"].step * batch == samples * epochs
    assert found["optimiser steps"].run == derive(config).total_optimizer_steps
    # The real planning of one optimiser step, all samples at full length: on every rank as many micro-batches as told.
    shared = size if found["optimiser steps"].step == epochs else 1
    real = len(Forest.of_groups(-(-batch // ranks), shared, 16, 16).microbatches(budget))
    assert found["micro-batches a rank trains"].step == real * found["optimiser steps"].step
    for each in found.values():
        if each.step is not None:
            assert each.run == each.step * steps


@given(lengths=st.lists(st.integers(1, 32), min_size=1, max_size=40), budget=st.integers(1, 300))
def test_shorter_samples_need_no_more_micro_batches(lengths, budget):
    rows = max(1, budget // 32)
    assert len(plan_microbatches(lengths, budget)) <= -(-len(lengths) // rows)


@given(steps=st.integers(1, 300), every=st.integers(1, 400))
def test_validations_are_those_that_are_due(steps, every):
    due = [version for version in range(steps + 1) if version % every == 0 or version == steps]
    assert validations(steps, every) == len(due)


def test_groups_that_are_trained_as_they_come_share_no_micro_batch():
    budget = {"max_tokens_per_microbatch_in_train": 100, "training_args": {"per_device_train_batch_size": 32}}
    whole, arriving = (amounts(rlvr(train_on_arrival=arrives, actor_train=budget)) for arrives in (False, True))
    assert whole["micro-batches a rank trains"].step == 8, "a group of 16 + 4 × 16 tokens each"
    assert arriving["micro-batches a rank trains"].step == 8


def test_the_amounts_of_a_run_with_recomputed_log_probs_and_validation():
    config = rlvr(
        max_steps=25,
        eval_steps=10,
        save_steps=10,
        old_logprobs="recompute",
        val_batch_size=6,
        validation={"data_args": {"file_name": "val.jsonl"}, "generating_args": {"num_return_sequences": 2}},
        actor_train={"max_tokens_per_microbatch_in_infer": 100},
    )
    found = amounts(config)
    assert found["tokens"].step == 8 * 4 * 32 and found["tokens"].at_most
    assert found["micro-batches a rank recomputes"].step == 8
    assert found["validations"].run == 4 and found["validation rollouts"].run == 4 * 12
    assert found["checkpoints"].run == 3
    assert found["optimiser steps"].arithmetic == "32 / (4 × 1 × 1 data-parallel = 4)"


def agentic(**keys) -> AgenticConfig:
    return load_config(
        AgenticConfig,
        {
            "pretrain": "model",
            "rollout_batch_size": 32,
            "sequence_length": 64,
            "max_tokens_per_step": 8,
            "custom_envs": {"Lake": {"env_type": "frozen_lake", "max_steps": 5}},
            "train_env_manager": {"tags": ["Lake"], "num_env_groups": 4, "group_size": 8},
            "val_env_manager": {"tags": ["Lake"], "num_env_groups": 10, "group_size": 1},
            "actor_train": {"device_mapping": "0", "training_args": {"per_device_train_batch_size": 16}},
            "actor_infer": {"device_mapping": "1"},
            "max_steps": 4,
            "eval_steps": 2,
            **keys,
        },
    )


def test_the_amounts_of_an_agentic_run():
    config = agentic()
    found = amounts(config)
    assert {name: found[name].step for name in ("env groups", "episodes", "turns", "tokens", "optimiser steps")} == {
        "env groups": 4, "episodes": 32, "turns": 160, "tokens": 2048, "optimiser steps": 2,
    }  # fmt: skip
    assert found["validations"].run == 3 and found["validation rollouts"].run == 30
    assert "prompts" not in found


def test_a_sample_a_turn_is_counted_as_such():
    manager = "roll.pipeline.agentic.env_manager.step_env_manager.StepEnvManager"
    config = agentic(custom_envs={"Lake": {"env_type": "frozen_lake", "max_steps": 5, "env_manager_cls": manager}})
    found = amounts(config)
    assert found["samples"].step == 160 and found["samples"].at_most
    assert found["tokens"].step == 160 * 64
    assert found["optimiser steps"].step == 2  # fixed, however many samples there are


@pytest.mark.parametrize(
    ("episodes", "batch", "steps", "arithmetic"),
    [(32, 64, 1, "⌈32 / (64 × 1 × 1 data-parallel = 64)⌉"), (32, 24, 2, "⌈32 / (24 × 1 × 1 data-parallel = 24)⌉")],
)
def test_a_batch_that_episodes_begin_is_an_optimiser_step_where_turns_are_samples(episodes, batch, steps, arithmetic):
    """ROLL's files name optimiser batches of samples, of which there are more than episodes."""
    manager = "roll.pipeline.agentic.env_manager.step_env_manager.StepEnvManager"
    envs = {"Lake": {"env_type": "frozen_lake", "max_steps": 5, "env_manager_cls": manager}}
    train = {"device_mapping": "0", "training_args": {"per_device_train_batch_size": batch}}
    config = agentic(custom_envs=envs, rollout_batch_size=episodes, actor_train=train)
    assert not check_config(config, 2)
    found = amounts(config)
    assert (found["optimiser steps"].step, found["optimiser steps"].arithmetic) == (steps, arithmetic)
    assert derive(config).optimizer_batch_size == episodes // steps
    each_a_sample = agentic(rollout_batch_size=episodes, actor_train=train)
    assert [problem.key for problem in check_config(each_a_sample, 2)] == ["rollout_batch_size"]


@given(ratio=st.floats(0, 5), groups=st.integers(1, 20))
def test_the_rollouts_under_way_are_what_admission_lets_start(ratio, groups):
    config = rlvr(
        async_generation_ratio=ratio,
        rollout_batch_size=groups,
        max_steps=1000,
        actor_train={"training_args": {"per_device_train_batch_size": 1}},
    )
    admission, started = Admission(groups, ratio, 1000), 0
    while admission.may_start():
        admission.start()
        started += 1
    told = plan_of(config).staleness
    assert f"at most {started:,} groups = {started * 4:,} rollouts" in told.admission
    assert told.bound == admission.bound


def test_shared_devices_are_named_on_both_sides():
    apart = plan_of(rlvr(devices="0-3", engines="4-7"))
    assert [role.shares_with for role in apart.roles] == [(), ()]
    shared = plan_of(rlvr(devices="0-3", engines="2-5", async_generation_ratio=1))
    assert [role.shares_with for role in shared.roles] == [("actor_infer",), ("actor_train",)]
    assert any("take turns" in note for note in shared.notes)
    assert [(group.devices, group.roles) for group in shared.devices] == [
        ((0, 1), ("actor_train",)),
        ((2, 3), ("actor_train", "actor_infer")),
        ((4, 5), ("actor_infer",)),
    ]


def test_a_bounded_cache_is_named_with_the_requests_that_it_may_not_hold():
    def note(**cache):
        engines = {"device_mapping": "1", "strategy_args": {"strategy_name": "hf_infer", "strategy_config": cache}}
        return next(note for note in plan_of(rlvr(actor_infer=engines)).notes if "run together" in note)

    assert "run together, as far as a cache of 4,096 tokens holds them; admission" in note(kv_cache_tokens=4096)
    assert "run together; admission" in note()


def test_a_reference_that_nothing_needs_is_not_planned_but_said():
    idle = plan_of(rlvr(reference={"device_mapping": "1"}))
    assert [role.role for role in idle.roles] == ["actor_train", "actor_infer"]
    assert any("reference is not started" in note for note in idle.notes)
    used = plan_of(rlvr(reference={"device_mapping": "1"}, use_kl_loss=True, kl_loss_coef=0.1))
    assert [role.role for role in used.roles] == ["actor_train", "actor_infer", "reference"]
    assert used.log_probs.reference.startswith("ℓ_r")


def test_where_each_log_prob_comes_from():
    fresh = plan_of(rlvr())
    assert fresh.log_probs.proximal.startswith("none")
    assert fresh.log_probs.behaviour.startswith("ℓ_b: hf_infer")
    decoupled = plan_of(rlvr(actor_train={"pg_variant": "decoupled_ppo"}))
    assert "actor_train recomputes" in decoupled.log_probs.proximal
    assert decoupled.loss.ratio == "r = exp(ℓ − ℓ_p)"
    assert decoupled.loss.weight.startswith("w = min(ρ_t, 5)")
    cool = plan_of(rlvr(actor_infer={"device_mapping": "0", "generating_args": {"temperature": 0.7}}))
    assert "logits / 0.7" in cool.log_probs.behaviour and "experts" not in cool.log_probs.behaviour
    replayed = plan_of(rlvr(actor_infer={"device_mapping": "0"}, actor_train={"router_replay": {"mode": "R3"}}))
    assert "trained with the experts that the engine chose (router_replay)" in replayed.log_probs.behaviour


def sampled(keep_sampling_mask=False, **generating):
    infer = {"device_mapping": "0", "generating_args": generating}
    return plan_of(rlvr(actor_infer=infer, keep_sampling_mask=keep_sampling_mask)).sampling


def test_truncated_sampling_is_told_with_its_bound():
    assert sampled() == ()
    (kept,) = sampled(None, top_p=0.9)
    assert "over S (keep_sampling_mask)" in kept
    nucleus = sampled(top_p=0.9)
    assert "top_p 0.9" in nucleus[0]
    assert f"{-math.log(0.9):.4f} a token" in nucleus[1] and f"{-math.log(0.9) * 16:.1f} over 16 tokens" in nucleus[1]
    assert "no bound" in sampled(top_p=0.9, top_k=5)[1]
    assert "top_k 5" in sampled(top_k=5)[0]


@pytest.mark.parametrize("accelerators", [False, True])
def test_an_engine_in_fp8_has_a_byte_a_number_but_outside_of_layers(accelerators):
    def weights_and_cache(**given):
        engine = {"strategy_name": "vllm", "strategy_config": given}
        infer = {"device_mapping": "1", "strategy_args": engine, "model_args": {"dtype": "bf16"}}
        plan = plan_of(rlvr(actor_infer=infer), accelerators=accelerators)
        (found,) = [role for role in plan.memory if role.role == "actor_infer"]
        return [part.bytes for part in found.resident]

    outer = SHAPE.outer_parameters
    plain, weights, cache = weights_and_cache(), weights_and_cache(quantization="fp8"), weights_and_cache(kv_cache_dtype="fp8")
    assert plain[0] == 2 * SHAPE.parameters == cache[0]
    assert weights[0] == 2 * outer + SHAPE.parameters - outer
    assert accelerators or (plain[1] == weights[1] == 2 * cache[1])


def test_memory_of_roles_that_take_turns_is_not_added_up():
    def peak(config, accelerators):
        plan = plan_of(config, accelerators=accelerators)
        return plan, {role.role: role for role in plan.memory}

    together, roles = peak(rlvr(), True)
    (group,) = together.devices
    train, infer = roles["actor_train"], roles["actor_infer"]
    # On an accelerator the trainer moves out, a sleeping engine keeps its weights.
    assert group.bytes == max(train.awake + CONTEXT + 2 * SHAPE.parameters, infer.awake + CONTEXT)
    assert infer.asleep == CONTEXT + 2 * SHAPE.parameters and train.asleep == CONTEXT
    on_cpu, roles = peak(rlvr(), False)
    assert on_cpu.devices[0].bytes > max(role.awake for role in roles.values())


def test_what_a_sleeping_role_leaves_on_an_accelerator_and_what_it_moves_to_the_host():
    def of(role, **keys):
        plan = plan_of(rlvr(**keys), accelerators=True)
        host = {part.name: part.bytes for part in plan.host}
        return {each.role: each for each in plan.memory}[role].asleep - CONTEXT, host.get(f"{role} asleep", 0)

    def zero(stage):
        return {"strategy_name": "deepspeed_train", "strategy_config": {"zero_optimization": {"stage": stage}}}

    count = SHAPE.parameters
    assert of("actor_train") == (0, 14 * count)
    # DeepSpeed moves its moments: bf16 weights, masters and gradient sums stay.
    assert of("actor_train", actor_train={"strategy_args": zero(2)}) == (10 * count, 8 * count)
    frozen = {"device_mapping": "0", "strategy_args": {**zero(3), "strategy_name": "deepspeed_infer"}}
    assert of("reference", use_kl_loss=True, kl_loss_coef=0.1, reference=frozen) == (2 * count, 0)
    assert of("actor_infer") == (2 * count, 0)
    for name, graphs in (("vllm", {}), ("sglang", {}), ("vllm", {"enforce_eager": True})):
        engine = {"device_mapping": "0", "strategy_args": {"strategy_name": name, "strategy_config": {"python": "p", **graphs}}}
        left = 0 if graphs else GRAPHS
        assert of("actor_infer", actor_infer=engine) == (left, 2 * count if name == "sglang" else 0)


def test_memory_falls_with_the_number_of_ranks_and_the_budget():
    def training(devices, budget):
        config = rlvr(
            devices=devices, engines="7", rollout_batch_size=64, actor_train={"max_tokens_per_microbatch_in_train": budget}
        )
        return {role.role: role.awake for role in plan_of(config).memory}["actor_train"]

    assert training("0", 40) < training("0", 1024)  # one sample at a time, or the four of the optimiser step
    config = rlvr(devices="0-3", engines="7", rollout_batch_size=64)
    resident = plan_of(config).memory[0].resident
    assert {part.name: part.bytes for part in resident}["optimiser"] == 2 * SHAPE.parameters


def test_memory_of_weights_that_groups_of_devices_divide_and_of_gradients_that_are_summed_late():
    def parts(**options):
        config = rlvr([0, 1, 2, 3], 4, **{"actor_train": {"strategy_args": {"strategy_config": options}}})
        role = next(role for role in plan_of(config).memory if role.role == "actor_train")
        return {part.name: part.bytes for part in role.resident}

    divided, in_pairs, late = parts(), parts(fsdp_size=2), parts(reduce_scatter_during_grad_accumulation=False)
    for name in ("weights", "optimiser", "gradients"):
        assert in_pairs[name] - 2 * divided[name] in range(-2, 3)
    assert late["gradients"] - 4 * divided["gradients"] in range(-4, 5) and late["weights"] == divided["weights"]


def test_devices_that_divide_tokens_are_no_data_parallel_ones_and_have_a_share_of_the_activations():
    """The batch of one of two pairs is that of two devices of their own, and weights are divided by all four."""

    def planned(devices, **model):
        plan = plan_of(rlvr([*range(devices)], devices, actor_train={"model_args": model}, rollout_batch_size=64))
        role = next(role for role in plan.memory if role.role == "actor_train")
        (training, *_) = role.passes
        return plan, {part.name: part.bytes for part in (*role.resident, *training.parts)}

    (plan, pairs), (_, two), (_, four) = planned(4, ulysses_size=2), planned(2), planned(4)
    assert plan.roles[0].arithmetic == "4 devices = 2 context × 2 data-parallel"
    assert abs(2 * pairs["activations"] - two["activations"]) < 0.01 * two["activations"]
    assert [pairs[name] for name in ("weights", "optimiser")] == [four[name] for name in ("weights", "optimiser")]


def test_the_host_of_the_first_ranks_holds_what_checkpoints_are_written_from():
    host = {part.name: part.bytes for part in plan_of(rlvr()).host}
    assert host["actor_train snapshot"] == 12 * SHAPE.parameters and "critic snapshot" not in host
    with_critic = plan_of(rlvr(adv_estimator="gae", critic={"device_mapping": "0"}))
    assert {part.name: part.bytes for part in with_critic.host}["critic snapshot"] == 12 * SHAPE.parameters


def test_the_host_of_an_explorer_holds_what_its_engines_have_fetched_and_not_put_into_place():
    whole = 4 * SHAPE.parameters
    engines = {"engines": "0-3", "mode": "explore", "groups_database": "sqlite:///groups.db"}
    for keys, buckets in (({}, 0), (engines, 2 * 4 * whole)):
        host = {part.name: part.bytes for part in plan_of(rlvr(**keys)).host}
        assert (host.get("arriving weights", 0), host["newest weights"]) == (buckets, whole)


@pytest.mark.parametrize(
    ("strategy", "transport", "copies"),
    [("hf_infer", "object_store", 0), ("vllm", "object_store", 1), ("vllm", "ipc", 0), ("sglang", "object_store", 1)],
)
def test_the_host_of_engines_that_are_other_processes_holds_a_version_that_they_map_until_they_flip(strategy, transport, copies):
    engines = {"device_mapping": "1-2", "strategy_args": {"strategy_name": strategy}}
    config = rlvr(actor_infer=engines, model_update_transport=transport)
    host = {part.name: part.bytes for part in plan_of(config, accelerators=True).host}
    assert host.get("staged weights", 0) == copies * host["newest weights"]


@pytest.mark.parametrize(
    ("engines", "transport", "moved", "kept"),
    [
        ({}, "object_store", 0, 1),
        ({}, "ipc", 0, 0),
        ({"strategy_name": "sglang"}, "object_store", 2, 0),
    ],
)
def test_vllm_drops_its_weights_while_it_sleeps_and_keeps_one_copy_a_node(engines, transport, moved, kept):
    strategy = {"strategy_name": "vllm"} | engines
    config = rlvr(actor_infer={"device_mapping": "0-1", "strategy_args": strategy}, model_update_transport=transport)
    host = {part.name: part.bytes for part in plan_of(config, accelerators=True).host}
    assert host.get("actor_infer asleep", 0) == moved * host["newest weights"]
    assert host.get("kept weights", 0) == kept * host["newest weights"]


def test_a_model_that_is_not_there_leaves_the_rest_of_the_plan():
    plan = plan_of(rlvr(), model="unknown: it is not there")
    assert [(role.note, role.awake) for role in plan.memory] == [("unknown: it is not there", 0)] * 2
    assert plan.host == ()
    assert plan.quantities


def long_notes(length, engine="vllm", **keys):
    strategy = {"strategy_name": engine, "strategy_config": {}}
    config = rlvr(response_length=length, actor_infer={"device_mapping": "1", "strategy_args": strategy}, **keys)
    return [note for note in plan_of(config).notes if "of the gradient is left" in note]


def test_a_loss_that_fades_over_long_responses_is_told_with_the_fix():
    topr = {"actor_train": {"pg_variant": "topr"}}
    (note,) = long_notes(8000, **topr)
    assert note.startswith("of a wrong response of 8,000 tokens about 37% of the gradient is left, if log-probs of vllm and")
    assert note.endswith(": actor_train.topr_ratio_level: token")
    assert len(long_notes(8000, actor_train={"pg_variant": "vespo"})) == 2
    masked = {"is_weight": {"enabled": True, "weight_type": "sequence", "mode": "mask", "upper_bound": 2.0}}
    assert all("is_weight.weight_type: geometric" in note for note in long_notes(8000, train_infer_correction=masked))
    assert long_notes(8000, train_infer_correction=masked)


def test_what_does_not_fade_is_not_told():
    topr = {"actor_train": {"pg_variant": "topr"}}
    assert long_notes(500, **topr) == long_notes(8000, engine="hf_infer", **topr) == long_notes(8000) == []
    assert long_notes(8000, actor_train={"pg_variant": "topr", "topr_ratio_level": "token"}) == []
    assert long_notes(8000, actor_train={"pg_variant": "topr"}, old_logprobs="recompute") == []


def test_gspo_recomputes_on_fresh_samples_of_another_engine():
    def recomputed(engine, **keys):
        strategy = {"strategy_name": engine, "strategy_config": {}}
        return derive(
            rlvr(actor_infer={"device_mapping": "1", "strategy_args": strategy}, actor_train={"pg_variant": "gspo"}, **keys)
        )

    assert recomputed("vllm").recompute_old_logprobs
    assert recomputed("vllm").old_logprobs_reason == "pg_variant gspo would clip what vllm and the trainer differ by"
    assert not recomputed("hf_infer").recompute_old_logprobs
    assert not recomputed("vllm", async_generation_ratio=1).recompute_old_logprobs
    assert not recomputed("vllm", old_logprobs="bypass").recompute_old_logprobs


@pytest.mark.parametrize(
    ("given", "dtype", "accelerators", "parts"),
    [
        ({}, "bf16", True, {"at most", "outputs of"}),
        ({"cuda_graphs": False}, "bf16", True, {"at most"}),
        ({}, "fp32", True, {"requests ×", "outputs of"}),
        ({}, "bf16", False, {"requests ×"}),
    ],
)
def test_hf_infer_has_blocks_and_graphs_on_accelerators_alone(given, dtype, accelerators, parts):
    """And `kv_cache_tokens` bounds the cache of either kind."""

    def cache_and_graphs(**bound):
        engine = {"strategy_name": "hf_infer", "strategy_config": given | bound}
        infer = {"device_mapping": "1", "strategy_args": engine, "model_args": {"dtype": dtype}}
        plan = plan_of(rlvr(actor_infer=infer), accelerators=accelerators)
        (found,) = [role for role in plan.memory if role.role == "actor_infer"]
        return [part for part in found.resident if "weights" not in part.name]

    found, bounded = cache_and_graphs(), cache_and_graphs(kv_cache_tokens=512)
    assert all(sum(name in part.formula for part in found) == 1 for name in parts) and len(found) == len(parts)
    assert bounded[0].bytes < found[0].bytes and bounded[1:] == found[1:]

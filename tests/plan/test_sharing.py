"""`sharing`: engines and trainer on one device, in turns or at the same time, and the memory of each."""

import pytest

from roll.core.configs.problems import ConfigError
from roll.core.configs.rlvr import RLVRConfig
from roll.core.configs.sizes import GIB
from roll.plan.memory import Model
from roll.plan.memory_plan import CONTEXT
from roll.plan.model_shape import ModelShape
from roll.plan.plan import make_plan, model_folders
from roll.plan.rules.loading import load_config
from roll.plan.rules.validation import check_config
from roll.plan.sharing import with_sharing

SHAPE = ModelShape(
    layers=28, hidden=1536, intermediate=8960, heads=12, kv_heads=2, head_dim=128, vocab=151936, tied=True,
    qkv_bias=True, output_bias=False, mlp_bias=False, qk_norm=False,
)  # fmt: skip
MODEL = Model(SHAPE, SHAPE.parameters)
"""Of 1.5 billion parameters."""


def config(sharing="overlap", engine="vllm", strategy_config=None, devices="0", engines="0", actor_train=None, **keys):
    infer = {"strategy_name": engine, "strategy_config": strategy_config or {}}
    return load_config(
        RLVRConfig,
        {
            "pretrain": "model",
            "sharing": sharing,
            "async_generation_ratio": 1,
            "rollout_batch_size": 8,
            "num_return_sequences_in_group": 4,
            "prompt_length": 512,
            "response_length": 1024,
            "max_steps": 10,
            "actor_infer": {"device_mapping": engines, "strategy_args": infer},
            "rewards": {"math": {"worker_cls": "a.B"}},
            **keys,
            "actor_train": {
                "device_mapping": devices,
                "data_args": {"file_name": "train.jsonl"},
                "training_args": {"per_device_train_batch_size": 4},
                **(actor_train or {}),
            },
        },
    )


def decided(found, gib=80.0, accelerators=True, model=MODEL):
    size = None if gib is None else int(gib * GIB)
    return with_sharing(found, dict.fromkeys(model_folders(found), model), accelerators, size)


def plan_of(found, gib=80.0):
    return make_plan(found, 1, dict.fromkeys(model_folders(found), MODEL), True, int(gib * GIB))


def test_the_engine_gets_what_the_trainer_leaves_and_both_fit_the_device():
    found, remarks = decided(config())
    (share,) = found.actor_infer.strategy_args.strategy_config.values()
    plan = plan_of(found)
    assert 0.1 < share < 0.92 and f"gpu_memory_utilization = {share:g}" in remarks[0]
    assert plan.devices[0].bytes <= 80 * GIB
    trainer, engine = ({role.role: role for role in plan.memory}[name] for name in ("actor_train", "actor_infer"))
    assert plan.devices[0].bytes == trainer.awake + engine.awake, "nobody sleeps"
    assert [(role.shares_with, role.overlaps) for role in plan.roles] == [((), ("actor_infer",)), ((), ("actor_train",))]


def test_a_share_that_is_written_stays():
    assert decided(config(strategy_config={"gpu_memory_utilization": 0.2}))[1] == []


def test_a_refusal_says_by_how_much_and_its_fix_fits():
    with pytest.raises(ConfigError) as told:
        decided(config(), gib=46)
    (problem,) = told.value.problems
    assert "GiB more than the 46.0 GiB" in problem.message
    key, tokens = problem.fix.partition(",")[0].removeprefix("overlap with ").split(": ")
    assert key == "actor_train.max_tokens_per_microbatch_in_train"
    assert decided(config(actor_train={"max_tokens_per_microbatch_in_train": int(tokens)}), gib=46)[0].sharing == "overlap"
    with pytest.raises(ConfigError, match="fix: turns"):
        decided(config(), gib=16)


def test_auto_overlaps_where_both_fit_and_says_why_it_does_not():
    assert decided(config("auto"))[0].sharing == "overlap"
    found, remarks = decided(config("auto"), gib=24)
    assert found.sharing == "turns" and "GiB more" in remarks[0]
    assert decided(config("auto", async_generation_ratio=0)) == (config("turns", async_generation_ratio=0), [])
    assert decided(config("auto"), accelerators=False)[0].sharing == "overlap", "CPU slots divide their threads"
    assert decided(config("auto"), gib=None)[0].sharing == "turns"


def test_a_memory_that_nobody_knows_needs_a_share():
    with pytest.raises(ConfigError, match=r"not known here.*gpu_memory_utilization"):
        decided(config(), gib=None)
    with pytest.raises(ConfigError, match="no such folder"):
        decided(config(), model="no such folder")
    given = config(strategy_config={"gpu_memory_utilization": 0.2})
    assert decided(given, gib=None) == (given, [])


def test_an_engine_without_a_share_takes_what_its_slots_need():
    found, remarks = decided(config(engine="hf_infer", strategy_config={}))
    assert (found.sharing, found.actor_infer.strategy_args.strategy_config, remarks) == ("overlap", {}, [])
    with pytest.raises(ConfigError, match="GiB more"):
        decided(config(engine="hf_infer"), gib=30)


def test_overlap_without_a_device_of_both_is_refused():
    apart = config(devices="0", engines="1")
    assert [(problem.key, problem.fix) for problem in check_config(apart, 2)] == [
        ("sharing", "turns, or the same device_mapping for both")
    ]
    assert check_config(config("auto", devices="0", engines="1"), 2) == []


def test_roles_of_the_trainer_go_on_taking_turns_with_each_other():
    judged = config(reference={"device_mapping": "0"}, use_kl_loss=True, kl_loss_coef=0.1)
    assert judged.on_devices_of("reference", at_once=False) == ("actor_train",)
    assert judged.on_devices_of("reference", at_once=True) == ("actor_infer",)
    assert judged.on_devices_of("actor_infer", at_once=True) == ("actor_train", "reference")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "hf_infer"])
def test_what_the_trainer_lends_by_handle_is_counted(engine):
    """Two buckets of the trainer's; and an engine that has one set of weights keeps the version that comes beside it, SGLang's in
    its worker, which has a context of its own on the device then."""
    by_handle, without = (config(engine=engine, model_update_transport=way) for way in ("ipc", "object_store"))
    assert by_handle.lends_weights and not without.lends_weights
    assert not config(engine=engine, model_update_transport="ipc", devices="1").lends_weights
    roles = {role.role: role for role in plan_of(by_handle).memory}
    lent = [part.bytes for part in roles["actor_train"].resident if part.name == "lent buckets"]
    assert lent == [2 * 1024 * 2**20] and roles["actor_train"].asleep >= lent[0]
    borrowed = [
        part.bytes for part in roles["actor_infer"].resident if part.name in ("borrowed weights", "context of the worker")
    ]
    assert borrowed == {"vllm": [2 * MODEL.parameters], "sglang": [2 * MODEL.parameters, CONTEXT], "hf_infer": []}[engine]
    if engine != "hf_infer":
        shares = [
            next(iter(decided(found)[0].actor_infer.strategy_args.strategy_config.values())) for found in (by_handle, without)
        ]
        assert shares[1] - shares[0] == pytest.approx((lent[0] + sum(borrowed)) / (80 * GIB), abs=0.011)

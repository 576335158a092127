"""What `roll check` says of the examples' devices, by arithmetic of its own: bytes a parameter and back end."""

import json
from pathlib import Path

import pytest

from roll.core.distributed.machine import Machine
from roll.plan.load_report import LoadReport
from roll.plan.memory_plan import CONTEXT, GRAPHS
from roll.plan.text import whole
from roll.prepare.check import check
from roll.prepare.compose import load

EXAMPLES = Path(__file__).parents[2] / "examples"
GIB = 1 << 30
SERVER = Machine(cpus=96, memory=1024 * GIB, accelerators=(80 * GIB,) * 8)
BIG, SMALL = 7_615_616_512, 494_032_768
"""Parameters of Qwen2.5-7B and -0.5B, as their pages say."""
SHAPES = {
    BIG: {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
          "intermediate_size": 18944, "vocab_size": 152064, "tie_word_embeddings": False},
    SMALL: {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
            "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True},
}  # fmt: skip
APART = (
    "async_generation_ratio=2 actor_infer.device_mapping=8-15 actor_train.device_mapping=0-7 reference.device_mapping=0-7 "
    "actor_train.training_args.gradient_accumulation_steps=128"
)
TURNS = "sharing=turns async_generation_ratio=0 +actor_infer.strategy_args.strategy_config.gpu_memory_utilization=0.5"


def plan_of(tmp_path, parameters, folder, name, overrides=""):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", **SHAPES[parameters]}))
    config, *_ = load(EXAMPLES / folder, name, [f"pretrain={tmp_path}", *overrides.split()])
    return check(config, SERVER).plan


def resident(plan, role):
    (memory,) = [each for each in plan.memory if each.role == role]
    return {part.name: part.bytes for part in memory.resident if part.name != "gathered"}, memory


@pytest.mark.parametrize(
    ("parameters", "folder", "name", "overrides", "trainer", "groups"),
    [
        # Megatron, tensor parallel 2 over 16 devices: bf16 weights and float32 gradients by 2, masters and moments by 16.
        (BIG, "qwen2.5-7B-rlvr_megatron", "rlvr_config_async", "", (2 / 2, 4 / 2, 12 / 16), [{"actor_train"}, {"actor_infer"}]),
        # Three roles take turns on 16 devices; whole on each, but for the optimiser.
        (BIG, "qwen2.5-7B-rlvr-offpolicy", "rlvr_config", "", (2, 4, 12 / 16), [{"actor_train", "actor_infer", "reference"}]),
        (BIG, "qwen2.5-7B-rlvr-offpolicy", "rlvr_config", APART, (2, 4, 12 / 8), [{"actor_train", "reference"}, {"actor_infer"}]),
        (SMALL, "qwen2.5-0.5B-agentic", "agent_val_frozen_lake_async", "", (2, 4, 12 / 4), [{"actor_train"}, {"actor_infer"}]),
        # FSDP2 on the one device that the engine has, too: a plain module in bf16 beside its masters.
        (SMALL, "qwen2.5-gsm8k", "full", TURNS, (2, 4, 12), [{"actor_train", "actor_infer"}]),
    ],
)
def test_bytes_on_the_devices(tmp_path, parameters, folder, name, overrides, trainer, groups):
    plan = plan_of(tmp_path, parameters, folder, name, overrides)
    parts, _ = resident(plan, "actor_train")
    expected = dict(zip(("weights", "gradients", "optimiser"), (int(each * parameters) for each in trainer), strict=True))
    assert parts == pytest.approx(expected, abs=1)
    engine, _ = resident(plan, "actor_infer")
    assert engine["weights"] == 2 * parameters
    assert sum(engine.values()) == pytest.approx(80 * GIB * share_of(name), abs=GIB // 100)
    assert [set(group.roles) for group in plan.devices] == groups
    # A role that sleeps leaves nothing of its model on the device, with these back ends.
    roles = {each.role: (each.awake, CONTEXT + GRAPHS * (each.role == "actor_infer")) for each in plan.memory}
    for group in plan.devices:
        asleep = sum(roles[role][1] for role in group.roles)
        assert group.bytes == max(roles[role][0] + asleep - roles[role][1] for role in group.roles) < 80 * GIB


def share_of(name):
    return {"rlvr_config_async": 0.85, "rlvr_config": 0.6, "agent_val_frozen_lake_async": 0.8, "full": 0.5}[name]


@pytest.mark.parametrize(
    ("parameters", "folder", "name", "overrides", "asleep"),
    [
        (BIG, "qwen2.5-7B-rlvr_megatron", "rlvr_config_async", "", {}),
        # On each of a node's 8 devices; gradients are not kept.
        (
            BIG, "qwen2.5-7B-rlvr-offpolicy", "rlvr_config", "",
            {"actor_train": 8 * (2 + 12 / 16), "reference": 8 * 2},
        ),
        (BIG, "qwen2.5-7B-rlvr-offpolicy", "rlvr_config", APART, {"actor_train": 8 * (2 + 12 / 8), "reference": 8 * 2}),
        (SMALL, "qwen2.5-gsm8k", "full", TURNS, {"actor_train": 2 + 12}),
    ],
)  # fmt: skip
def test_bytes_of_the_host(tmp_path, parameters, folder, name, overrides, asleep):
    """What waits there, the newest weights, and the node's ranks' part of a checkpoint: 12 a parameter over all nodes."""
    plan = plan_of(tmp_path, parameters, folder, name, overrides)
    host = {part.name: part.bytes for part in plan.host}
    ranks = next(len(role.devices) for role in plan.roles if role.role == "actor_train")
    expected = {"newest weights": 2 * parameters, "actor_train snapshot": 12 * parameters * min(ranks, 8) // ranks}
    if name == "full":  # on one machine engines map the newest weights, and the next ones take the place of those before
        expected["former weights"] = 2 * parameters
    elif next(role for role in plan.roles if role.role == "actor_infer").strategy != "hf_infer":
        expected["staged weights"] = 2 * parameters
        if asleep and not overrides:
            expected["kept weights"] = 2 * parameters
    expected |= {f"{role} asleep": int(each * parameters) for role, each in asleep.items()}
    assert host == pytest.approx(expected, abs=16)


def test_both_halves_of_gsm8k_are_on_one_device_of_80_gib_at_the_same_time(tmp_path):
    """The trainer's bytes, two buckets that it lends, and vLLM's share with the version that arrives beside it."""
    plan = plan_of(tmp_path, SMALL, "qwen2.5-gsm8k", "full")
    trainer, _ = resident(plan, "actor_train")
    assert sum(trainer.values()) == pytest.approx((2 + 4 + 12) * SMALL + 2 * min(GIB, 2 * SMALL), abs=1)
    engine, _ = resident(plan, "actor_infer")
    assert engine["weights"] == engine["borrowed weights"] == 2 * SMALL
    (group,) = plan.devices
    assert group.bytes == sum(role.awake for role in plan.memory) and 76 * GIB < group.bytes < 80 * GIB
    told = "\n".join(whole(plan, SERVER, (), LoadReport()))
    assert "actor_train and actor_infer at the same time" in told and "take turns" not in told

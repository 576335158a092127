"""Whole runs on images: a tiny random Qwen2.5-VL is asked about drawn shapes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import tiny_vision
import yaml
from PIL import Image
from safetensors.torch import load_file

from roll.cli.main import main as roll
from roll.compat.roll.pipelines import pipeline_of
from roll.core.configs.plain import to_mapping
from roll.core.configs.problems import ConfigError
from roll.prepare.training_flow import AsyncTrainingFlow
from roll.prompts.image_marks import names_in
from roll.strategies import model_folder

SHAPES = ("circle", "square", "star", "line")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and sixteen rows: the even ones show an image, the odd ones two, one of which all have."""
    folder = tmp_path_factory.mktemp("seen")
    tiny_vision.save(tiny_vision.qwen2_5_vl(seed=3), folder / "model")
    (folder / "all.png").write_bytes(tiny_vision.drawn("line", (24, 16)))
    rows = []
    for i in range(16):
        (folder / f"{i}.png").write_bytes(tiny_vision.drawn(SHAPES[i % 4], (16, 16), at=(1 + i // 4, 1)))
        names, text = ([f"{i}.png", "all.png"], "<image>?<image>what") if i % 2 else ([f"{i}.png"], "<image>what")
        rows.append({"id": str(i), "tag": "even", "prompt": text, "images": names, "ground_truth": SHAPES[i % 4]})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def with_images(seen: Path) -> dict[str, Any]:
    """Changes that ask about them."""
    return {
        "pretrain": str(seen / "model"),
        "prompt_length": 32,
        "response_length": 4,
        "actor_train.data_args": {"file_name": str(seen / "rows.jsonl"), "images": {}},
        "rewards": {"shapes": {"worker_cls": "integration_rewards.Words", "tag_included": ["even"]}},
    }


def test_a_run_on_images_learns_from_what_its_engine_saw(lab: Any, make_config: Any, with_images: dict[str, Any]) -> None:
    """The trainer's log-probs are the engine's at lag 0, images are stored once, and nothing of pixels travels."""
    changes = {**with_images, "old_logprobs": "recompute", "deterministic": True}
    run = lab.run(make_config(changes, max_steps=2))
    assert all(row["actor/engine_mismatch_max"] <= 1e-4 for row in run.steps()), "log-probs"
    files = [path for path in (run.run_dir / "images").iterdir() if path.is_file()]
    named = [names_in(row["prompt"]) for row in run.trained_samples()]
    assert named and all(1 <= len(names) <= 2 and set(names) <= {path.name for path in files} for names in named)
    assert len(files) == 17 and len(list((run.run_dir / "images" / "numbers").iterdir())) == 17
    assert max(len(line) for line in (run.run_dir / "samples.jsonl").read_text().splitlines()) < 2000


@pytest.mark.parametrize("family", ["qwen3-vl", "smolvlm", "idefics3"])
def test_a_run_of_each_family(family: str, lab: Any, make_config: Any, with_images: dict[str, Any], tmp_path: Path) -> None:
    folder = tiny_vision.save(tiny_vision.MODELS[family](seed=3), tmp_path / "model")
    changes = {**with_images, "pretrain": str(folder), "prompt_length": 96, "old_logprobs": "recompute", "save_steps": 2}
    run = lab.run(make_config(changes, max_steps=2))
    assert all(row["actor/engine_mismatch_max"] <= 1e-4 for row in run.steps())
    trained = run.run_dir / "checkpoints" / "step-2" / "trainer" / "model"
    model_folder.check_weights(trained)
    model_folder.check_sight(trained, True)


ZERO = {
    "actor_train.strategy_args": {
        "strategy_name": "deepspeed_train",
        "strategy_config": {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}},
    },
    "reference.strategy_args.strategy_name": "deepspeed_infer",
    "reference.device_mapping": "0",
    "use_kl_loss": True,
    "kl_loss_coef": 0.01,
}
CRITIC = {
    "adv_estimator": "gae",
    "critic.device_mapping": "0",
    "critic.training_args.learning_rate": 0.01,
    "actor_infer.generating_args.eos_token_id": 1,
}


@pytest.mark.slow
def test_a_run_on_zero_with_a_reference(lab: Any, make_config: Any, with_images: dict[str, Any]) -> None:
    """In processes of their own; FSDP2 goes on from the checkpoint."""
    from roll.platform.ray_backend import RayBackend

    changes = {**with_images, "old_logprobs": "recompute"}
    run = lab.start(make_config({**changes, **ZERO}, max_steps=2, save_steps=2), RayBackend(lab.inventory))
    assert run.summary["status"] == "finished", run.summary["reason"]
    first, second = run.steps()
    assert max(row["actor/engine_mismatch_max"] for row in (first, second)) <= 1e-4
    assert abs(first["actor/kl_loss"]) <= 1e-6 < second["actor/kl_loss"], "the reference is the policy, until it is trained"
    checkpoint = run.run_dir / "checkpoints" / "step-2"
    model_folder.check_weights(checkpoint / "trainer" / "model")
    model_folder.check_sight(checkpoint / "trainer" / "model", True)
    again = lab.run_local(make_config(changes, exp_name="on", max_steps=3, resume_from_checkpoint=str(checkpoint)))
    assert again.summary["status"] == "finished", again.summary["reason"]
    assert [row["actor/engine_mismatch_max"] <= 1e-4 for row in again.steps()] == [True]


def test_a_run_with_a_critic_that_sees(lab: Any, make_config: Any, with_images: dict[str, Any]) -> None:
    """A resumed run takes its critic's folder, in which the part that sees was trained, too."""
    config = make_config({**with_images, **CRITIC}, max_steps=2, save_steps=2)
    run = lab.run(config)
    assert all(row["critic/value_loss"] > 0 for row in run.steps())
    checkpoint = run.run_dir / "checkpoints" / "step-2"
    folder = checkpoint / "critic" / "model"
    model_folder.check_sight(folder, True)
    before, after = load_file(Path(config.pretrain) / "model.safetensors"), load_file(folder / "model.safetensors")
    assert any(name.startswith("visual.") and not after[name].equal(before[name]) for name in after)
    changes = {**with_images, **CRITIC, "critic.model_args.model_name_or_path": str(folder)}
    again = lab.run_local(make_config(changes, exp_name="on", max_steps=3, resume_from_checkpoint=str(checkpoint)))
    assert again.summary["status"] == "finished", again.summary["reason"]


def test_a_teacher_sees(lab: Any, make_config: Any, with_images: dict[str, Any], tmp_path: Path) -> None:
    """Its log-probs are the engine's as long as the policy is what the teacher is."""
    taught = {
        "adv_estimator": "on_policy_distillation",
        "actor_train.pg_variant": "reinforce",
        "teachers.own.device_mapping": "0",
    }
    shutil.copytree(with_images["pretrain"], tmp_path / "teacher")
    taught |= {"teachers.own.model_args.model_name_or_path": str(tmp_path / "teacher")}
    first, second = lab.run(
        make_config({**with_images, **taught, "actor_train.training_args.learning_rate": 1e-12}, max_steps=2)
    ).steps()
    assert abs(first["teacher/kl"]) <= 1e-5 and abs(second["teacher/kl"]) <= 1e-5


@pytest.mark.parametrize("role", ["critic", "reference"])
def test_models_that_see_otherwise_are_refused(
    role: str, lab: Any, make_config: Any, with_images: dict[str, Any], tmp_path: Path
) -> None:
    """The ids have a place for each feature that the policy's processor makes."""
    for name, make in (("other", tiny_vision.qwen2_5_vl), ("family", tiny_vision.smolvlm)):
        tiny_vision.save(make(), tmp_path / name)
    processor = tmp_path / "other" / "preprocessor_config.json"
    sizes = json.loads(processor.read_text())["size"] | {"longest_edge": 64}
    processor.write_text(json.dumps(json.loads(processor.read_text()) | {"size": sizes}))
    changes = {
        **with_images,
        **(CRITIC if role == "critic" else {"use_kl_loss": True, "kl_loss_coef": 0.01, "reference.device_mapping": "0"}),
    }
    for name in ("other", "family"):
        with pytest.raises(ConfigError, match=r"takes other places|are another text|embeddings have") as refused:
            lab.run_local(make_config({**changes, f"{role}.model_args.model_name_or_path": str(tmp_path / name)}))
        assert f"{role}.model_args.model_name_or_path" in str(refused.value), name


def test_what_is_trained_leaves_a_folder_that_transformers_reads(lab: Any, make_config: Any, with_images: dict[str, Any]) -> None:
    frozen = {**with_images, "actor_train.model_args": {"freeze_vision": True}}
    runs = [lab.run(make_config(changes, exp_name=name, save_steps=2)) for name, changes in (("a", with_images), ("b", frozen))]
    before = load_file(Path(with_images["pretrain"]) / "model.safetensors")
    for run, trained in zip(runs, (True, False), strict=True):
        folder = run.run_dir / "checkpoints" / "step-2" / "trainer" / "model"
        model_folder.check_weights(folder)
        model_folder.check_sight(folder, True)
        after = load_file(folder / "model.safetensors")
        assert after.keys() == before.keys()
        moved = {name for name in before if not after[name].equal(before[name])}
        assert any(name.startswith("visual.") for name in moved) == trained and "lm_head.weight" in moved


def test_a_resumed_run_goes_on_with_groups_that_were_buffered(lab: Any, make_config: Any, with_images: dict[str, Any]) -> None:
    changes = {**with_images, "async_generation_ratio": 3, "save_steps": 1, "max_ckpt_to_keep": 9}
    slow = {**changes, "actor_train.training_args.per_device_train_batch_size": 1}  # sixteen optimiser steps of a sample
    first = lab.run(make_config(slow, max_steps=4))
    checkpoints = [first.run_dir / "checkpoints" / f"step-{step}" for step in (1, 2, 3)]
    checkpoint = max(checkpoints, key=lambda path: (path / "buffer.jsonl").stat().st_size)
    numbers = {-1 - int(path.name, 16) for path in (first.run_dir / "images" / "numbers").iterdir()}
    buffered = [json.loads(line) for line in (checkpoint / "buffer.jsonl").read_text().splitlines()]
    assert buffered and all(set(group["prompt"]["input_ids"]) & numbers for group in buffered)
    resumed = lab.run_local(make_config(changes, exp_name="other", max_steps=5, resume_from_checkpoint=str(checkpoint)))
    assert resumed.summary["status"] == "finished" and resumed.summary["resumed_from_step"], resumed.summary["reason"]


def test_a_broken_image_ends_the_preparation(lab: Any, make_config: Any, with_images: dict[str, Any], tmp_path: Path) -> None:
    Image.new("RGB", (900, 3)).save(tmp_path / "long.png")
    (tmp_path / "cut.png").write_bytes(tiny_vision.drawn("circle")[:60])
    row = {"tag": "even", "ground_truth": "x", "prompt": "<image>what"}
    for images, text, says in (
        (["cut.png"], None, "line 1: images[0]: the image cannot be read"),
        (["long.png"], None, "line 1: the 900 x 3 image: ValueError: absolute aspect ratio"),
        (["gone.png"], None, "there is no file"),
        ([], "<start><image><end>what", "0 images in 'images', and 1 mark"),
    ):
        (tmp_path / "rows.jsonl").write_text(json.dumps({**row, "images": images, **({"prompt": text} if text else {})}))
        data = {"file_name": str(tmp_path / "rows.jsonl"), "images": {}}
        with pytest.raises(ConfigError, match=re.escape(says)):
            lab.run_local(make_config({**with_images, "actor_train.data_args": data}))


def test_models_and_images_have_to_fit(lab: Any, make_config: Any, with_images: dict[str, Any], material: Path) -> None:
    with pytest.raises(ConfigError, match="is shown images by"):
        lab.run_local(make_config({**with_images, "pretrain": str(material / "model")}))
    with pytest.raises(ConfigError, match="is a model that sees"):
        lab.run_local(make_config({"pretrain": with_images["pretrain"]}))


BLIND: dict[str, tuple[dict[str, Any], str]] = {
    "sglang": ({"actor_infer.strategy_args": {"strategy_name": "sglang"}}, "actor_infer.strategy_args.strategy_name"),
    "megatron": ({"actor_train.strategy_args": {"strategy_name": "megatron_train"}}, "actor_train.strategy_args.strategy_name"),
    "rollout": ({"rollout": {"function": "a.b"}}, "rollout"),
    "warm start": ({"warm_start": {"steps": 1, "data_args": {"file_name": "x.jsonl"}}}, "warm_start"),
    "teacher": ({"teachers": {"one": {"endpoint": "http://127.0.0.1:1/v1"}}}, "teachers"),
    "adapters": ({"actor_train.model_args": {"lora_target": "q_proj"}}, "actor_train.model_args.lora_update"),
    "judge": ({"rewards.shapes.judge": {"model_name_or_path": "x", "device_mapping": "0"}}, "rewards.shapes.judge"),
    "chatml": ({"actor_train.data_args.template": "chatml"}, "actor_train.data_args.template"),
}


@pytest.mark.parametrize("name", BLIND)
def test_what_does_not_see_is_refused_by_name(name: str, make_config: Any, with_images: dict[str, Any]) -> None:
    from roll.plan.rules.image_rules import image_problems

    changes, key = BLIND[name]
    found = {problem.key: str(problem) for problem in image_problems(make_config({**deepcopy(with_images), **changes}))}
    assert key in found and "images" in found[key]
    for engine in ("hf_infer", "vllm"):
        sees = {"actor_infer.strategy_args": {"strategy_name": engine}}
        assert list(image_problems(make_config({**deepcopy(with_images), **sees}))) == []


def test_adapters_are_merged_into_the_part_that_writes(lab: Any, make_config: Any, with_images: dict[str, Any]) -> None:
    """Merged weights of adapters on the part that writes; the part that sees stays as it is."""
    lora = {"lora_target": "q_proj,v_proj", "lora_update": "merged"}
    run = lab.run(make_config({**with_images, "actor_train.model_args": lora}, save_steps=2))
    before = load_file(Path(with_images["pretrain"]) / "model.safetensors")
    after = load_file(run.run_dir / "checkpoints" / "step-2" / "trainer" / "model" / "model.safetensors")
    assert {name.rsplit(".", 2)[1] for name in before if not after[name].equal(before[name])} == {"q_proj", "v_proj"}


def test_a_file_may_name_a_model_that_sees() -> None:
    mapping: dict[str, Any] = {
        "pretrain": "Qwen/Qwen2.5-VL-3B-Instruct",
        "rewards": {"a": {}},
        "actor_train": {"data_args": {"file_name": "rows.jsonl"}},
    }
    assert pipeline_of(mapping) == "rlvr"
    with pytest.raises(ConfigError, match="models that hear"):
        pipeline_of({**mapping, "pretrain": "Qwen/Qwen2.5-Omni-7B"})


def test_a_second_run_of_the_same_name_has_its_images(make_config: Any, with_images: dict[str, Any]) -> None:
    """They are read before the first is moved aside."""
    for _ in range(2):
        assert AsyncTrainingFlow(make_config(with_images, max_steps=1), local=True).run()["status"] == "finished"


@pytest.mark.slow
def test_processes_apart_and_a_replay_show_what_one_of_them_has_read(
    make_config: Any, with_images: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The explorer reads the rows; the trainer's log-probs are its engine's at lag 0."""
    recorded = {"rollout_log_per_step": "all", "deterministic": "training", "async_generation_ratio": 0, "save_steps": 2}
    config = make_config({**with_images, **recorded, "old_logprobs": "recompute"}, max_steps=4)
    (tmp_path / "apart.yaml").write_text(yaml.safe_dump(to_mapping(config)))
    command = [sys.executable, "-m", "roll.cli.main", "train", "rlvr", "--config_path", str(tmp_path), "--config_name", "apart"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    halves = [
        subprocess.Popen([*command, "--local", *mode], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
        for mode in (["mode=train"], ["mode=explore", "explorer_name=one"])
    ]
    assert [half.wait(timeout=120) for half in halves] == [0, 0]
    shared = Path(config.run_dir)
    assert len(list((shared / "images" / "numbers").iterdir())) == 17 and not (shared / "explorers/one/images").exists()
    steps = [json.loads(line) for line in (shared / "metrics.jsonl").read_text().splitlines()]
    assert max(row["actor/engine_mismatch_max"] for row in steps if "actor/engine_mismatch_max" in row) <= 1e-4
    assert roll(["replay", config.run_dir, "--local", "--from", "3"]) == 0
    assert "weights: equal after 2 of 2 steps" in capsys.readouterr().out

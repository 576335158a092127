"""Whole runs on images: a tiny random Qwen2.5-VL is asked about drawn shapes."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import tiny_vision
from PIL import Image
from safetensors.torch import load_file

from roll.compat.roll.pipelines import pipeline_of
from roll.core.configs.problems import ConfigError
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
    "deepspeed": ({"actor_train.strategy_args": {"strategy_name": "deepspeed_train"}}, "actor_train.strategy_args.strategy_name"),
    "megatron": ({"actor_train.strategy_args": {"strategy_name": "megatron_train"}}, "actor_train.strategy_args.strategy_name"),
    "explorer": ({"mode": "explore", "groups_database": "sqlite:////tmp/none.db"}, "mode"),
    "database": ({"groups_database": "sqlite:////tmp/none.db"}, "groups_database"),
    "rollout": ({"rollout": {"function": "a.b"}}, "rollout"),
    "warm start": ({"warm_start": {"steps": 1, "data_args": {"file_name": "x.jsonl"}}}, "warm_start"),
    "teacher": ({"teachers": {"one": {"model_args": {"model_name_or_path": "x"}, "device_mapping": "0"}}}, "teachers"),
    "critic": ({"adv_estimator": "gae", "critic": {"device_mapping": "0"}}, "adv_estimator"),
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

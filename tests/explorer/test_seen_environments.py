"""Agents that see: a tiny random Qwen2.5-VL plays environments of gymnasium from what they draw."""

import asyncio
import importlib.util
import json
import re
from array import array
from pathlib import Path

import pytest
import tiny_vision

from roll.cli.verify import read_run, violations
from roll.core.configs.problems import ConfigError
from roll.core.data.episode import PolicyAnswer
from roll.core.data.sample import LOGPROBS, TOKENS, VersionSpan
from roll.core.explorer.group_play import GroupTask
from roll.core.workers.infer_interface import SamplingParams
from roll.envs.environment_worker import EnvironmentWorker
from roll.prepare.agentic_run import prepare
from roll.prompts.image_folder import ImageFolder, images_in

LAKE = {
    "env_type": "frozen_lake",
    "max_steps": 4,
    "agent_system_template": "",
    "agent_template": "{observation}what",
    "env_config": {
        "size": 2,
        "render_mode": "rgb_array",
        "action_pattern": "(.*)",
        "action_lookup": {"circle": "Left", "square": "Down", "star": "Right", "line": "Up"},
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_vision.save(tiny_vision.qwen2_5_vl(seed=3), tmp_path_factory.mktemp("seeing") / "model")


@pytest.fixture
def seeing(make_config, model):
    """Changes for a run from pixels."""

    def make(changes=None, **top_level):
        base = {
            "pretrain": str(model),
            "custom_envs": {"lake": json.loads(json.dumps(LAKE))},
            "actor_train.data_args": {"template": "native", "images": {}},
            "sequence_length": 120,
            "max_tokens_per_step": 1,
        }
        return make_config({**base, **(changes or {})}, **top_level)

    return make


@pytest.mark.parametrize("manager", ["traj_env_manager.TrajEnvManager", "step_env_manager.StepEnvManager"])
def test_a_run_is_trained_on_what_its_agents_saw(lab, seeing, manager):
    """Log-probs of the trainer are the engine's at lag 0; frames are stored once, and samples carry names and numbers alone."""
    changes = {
        "custom_envs.lake.env_manager_cls": f"roll.pipeline.agentic.env_manager.{manager}",
        "old_logprobs": "recompute",
        "async_generation_ratio": 0,
    }
    run = lab.run(seeing(changes))
    assert all(row["actor/engine_mismatch_max"] <= 1e-4 for row in run.steps())
    assert not list(violations(read_run(run.run_dir)))
    stored = {path.name for path in (run.run_dir / "images").iterdir() if path.is_file()}
    text = (run.run_dir / "samples.jsonl").read_text()
    named = set(re.findall(r"image ([0-9a-f]{64}\.png)", text))
    assert named and named <= stored and "base64" not in text
    turns = [turn for sample in run.trained_samples() for turn in sample["trajectory"]["turns"]]
    assert all(re.fullmatch("\u27e6image [0-9a-f]{64}.png\u27e7", turn["observation"]) for turn in turns)
    assert max(len({turn["observation"] for turn in sample["trajectory"]["turns"]}) for sample in run.trained_samples()) > (
        1 if "Traj" in manager else 0
    ), "several images in one sample"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs requirements/vllm.txt")
@pytest.mark.xdist_group("vllm")
def test_vllm_goes_on_with_frames_that_it_has_seen_when_weights_come_in_flight(lab, seeing, tmp_path):
    """A request that waits in the engine while weights come sees with the new ones."""
    changes = {
        "pretrain": str(tiny_vision.save(tiny_vision.for_vllm("qwen2.5-vl", 3), tmp_path / "model", 2.0)),
        "actor_infer.strategy_args": {"strategy_name": "vllm"},
        "weight_update_mode": "in_flight",
        "async_generation_ratio": 2,
        "entropy_loss_coef": 0.01,
        "sequence_length": 512,
        "max_tokens_per_step": 60,
    }
    run = lab.run(seeing(changes, max_steps=6))
    spans = [sample["versions"] for sample in run.trained_samples()]
    assert any(len({version for _, _, version, *_ in each}) > 1 for each in spans), "several versions in a rollout"
    assert max(row["actor/engine_mismatch_max"] for row in run.steps()[:1]) <= 1e-4


def test_a_run_that_goes_on_from_another_has_the_frames_of_its_groups(lab, seeing):
    """Before a worker starts: nobody plays groups again that a checkpoint holds."""
    first = lab.run(seeing(max_steps=1, save_steps=1))
    checkpoint = first.run_dir / "checkpoints" / "step-1"
    prepared = prepare(seeing(exp_name="other", resume_from_checkpoint=str(checkpoint)), lab.inventory)
    old, new = (ImageFolder(folder / "images") for folder in (first.run_dir, prepared.run_dir))
    frames = [path.name for path in old.path.iterdir() if path.is_file()]
    assert len(frames) > 1 and [new.name_of(old.number_of(name)) for name in frames] == frames


REFUSED = {
    "no images": ({"actor_train.data_args": {"template": "native"}}, "it is an image, and the run shows none"),
    "a model that reads": ({"pretrain": None}, "is shown images by data_args.images"),
    "no chat template": ({"actor_train.data_args": {"template": "none", "images": {}}}, "only the model's own chat template"),
    "a column": ({"actor_train.data_args": {"template": "native", "images": {"column": "x"}}}, "data_args.images.column"),
    "an engine": (
        {"actor_infer": {"device_mapping": "1", "strategy_args": {"strategy_name": "sglang"}}},
        "does not see the images of data_args.images; fix: hf_infer or vllm",
    ),
    "a trainer": (
        {"actor_train.strategy_args": {"strategy_name": "megatron_train"}},
        "does not see the images of data_args.images; fix: fsdp2_train or deepspeed_train",
    ),
    "nothing to see it": ({"custom_envs.lake.env_config.render_mode": "human"}, "render_mode"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_shown_is_refused_before_the_run(name, lab, seeing, model_folder):
    changes, told = REFUSED[name]
    changes = {key: str(model_folder) if value is None else value for key, value in changes.items()}
    with pytest.raises(ConfigError, match=re.escape(told)):
        lab.run(seeing(changes))


class Coordinator(EnvironmentWorker):
    """Its policy says the first word of an action, and remembers what it was shown."""

    async def _ask(self, task, episode, context, turn, most, stop):
        self.asked = [*getattr(self, "asked", []), tuple(context)]
        ids = array(TOKENS, [tiny_vision.IDS["square" if turn % 2 else "star"]])
        return PolicyAnswer(ids, array(LOGPROBS, [-0.5]), [VersionSpan(0, 1, task.version)], self._tokenizer.decode(ids), True)


def coordinator(config, model, folder):
    given = {"config": config, "tokenizer_folder": str(model), "instructions": {"lake": ""}, "context": 200}
    return Coordinator(**given, requests_per_engine=8, turns=folder)


def played(worker, seed=0):
    async def play():
        await worker.connect([], replaced=False)
        try:
            given = {"key": "g", "uid": "train/lake/0", "tag": "lake", "env_seed": seed, "started": 2, "needed": 2}
            return (await worker.play_group(GroupTask(**given, sampling=SamplingParams(), version=0))).samples
        finally:
            await worker.close()

    return asyncio.run(play())


@pytest.mark.parametrize("execution", ["inline", "thread", "process"])
def test_every_answer_is_asked_to_what_the_sample_holds(seeing, model, tmp_path, execution):
    """The ids of a sample begin with those that the engine was given, to the token; equal frames have one number."""
    worker = coordinator(seeing({"custom_envs.lake.execution": execution}), model, tmp_path)
    samples = played(worker)
    whole = [(*sample.prompt.input_ids, *sample.response_ids) for sample in samples]
    assert len(worker.asked) == sum(len(sample.trajectory.turns) for sample in samples)
    assert all(any(ids[: len(asked)] == asked for ids in whole) for asked in worker.asked)
    folder = ImageFolder(Path(worker._config.images_dir))
    for sample, ids in zip(samples, whole, strict=True):
        shown = [turn.observation[len("\u27e6image ") : -1] for turn in sample.trajectory.turns]
        assert [folder.number_of(name) for name in dict.fromkeys(shown)] == images_in(ids)
        assert sum(token < 0 for token in ids) == 16 * len(shown), "sixteen features for 32 x 32 pixels"


def test_an_interrupted_episode_goes_on_from_digests(seeing, model, tmp_path):
    config = seeing()
    first = played(coordinator(config, model, tmp_path))
    (record,) = [path for path in tmp_path.rglob("*.jsonl") if "train" in path.name or "turn" in str(path)]
    rows = record.read_text().splitlines()
    assert len(rows) >= 4 and all(len(row) < 1000 and "base64" not in row for row in rows)
    record.write_text("".join(row + "\n" for row in rows[: len(rows) // 2]))
    again = coordinator(config, model, tmp_path)
    second = played(again)
    assert [sample.response_ids for sample in second] == [sample.response_ids for sample in first]
    assert 0 < len(again.asked) < sum(len(sample.trajectory.turns) for sample in first), "the rest alone is sampled"

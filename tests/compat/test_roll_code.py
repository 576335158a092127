"""Code that was written for ROLL, as it stands: reward workers in its form, and what of ROLL they may name."""

import asyncio
import importlib
import json
import random
import re
from dataclasses import replace

import pytest
import torch
from tiny_models import symbol_tokenizer, tiny_qwen2

from roll.cli.main import main
from roll.compat.code.names import NAMES
from roll.compat.code.reward_child import DataProto, RewardChild
from roll.compat.code.reward_worker import as_raised, question
from roll.compat.code.workers import all_seed, contains_renderable_field, default_parser_action_func
from roll.core.data.sample import Prompt, Sample
from roll.core.errors import CallFailed
from roll.core.rewards.worker import worker_class

THEIRS = """
import os, signal
from typing import Optional, Union

import numpy as np
import torch

from roll.configs.worker_config import WorkerConfig
from roll.distributed.executor.worker import Worker
from roll.distributed.scheduler.decorator import Dispatch, register
from roll.distributed.scheduler.protocol import DataProto
from roll.distributed.strategy.strategy import InferenceStrategy, TrainStrategy
from roll.models.model_providers import default_reward_model_provider, default_tokenizer_provider
from roll.pipeline.rlvr.rlvr_config import RewardConfig
from roll.utils.logging import get_logger


class Sums(Worker):
    def __init__(self, worker_config: WorkerConfig):
        super().__init__(worker_config=worker_config)
        self.rank_info.dp_rank = self.rank_info.rank
        self.rank_info.dp_size = self.rank_info.world_size
        self.tokenizer = default_tokenizer_provider(model_args=self.worker_config.model_args)
        self.strategy: Optional[Union[InferenceStrategy, TrainStrategy]] = None
        self.kind = worker_config.reward_type
        self.pattern = getattr(self.worker_config, "format_pattern", None)
        self.asked = 0

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, pipeline_config):
        super().initialize(pipeline_config)

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE, clear_cache=False)
    def compute_rewards(self, data: DataProto):
        signal.signal(signal.SIGVTALRM, lambda *_: None)  # only the main thread may
        self.asked += 1
        texts = self.tokenizer.batch_decode(data.batch["responses"], skip_special_tokens=True)
        prompts = self.tokenizer.batch_decode(data.batch["prompts"], skip_special_tokens=False)
        scores = []
        for text, prompt, truth, level in zip(
            texts, prompts, data.non_tensor_batch["ground_truth"], data.non_tensor_batch["level"]
        ):
            self.logger.info(f"{prompt} {text}")
            scores.append(level if text.replace(" ", "") == truth and prompt.replace(" ", "") == "1+1=" else 0)
        token_level_rewards = torch.zeros_like(data.batch["responses"], dtype=torch.float16)
        scores = torch.tensor(scores, dtype=torch.float16)
        output = DataProto.from_dict(
            tensors={
                "token_level_rewards": token_level_rewards,
                "response_level_rewards": scores * (2 if self.kind == "double" else 1),
                "scores": scores,
            }
        )
        output.meta_info = {"metrics": {"asked": self.asked}}
        return output


class Awaited(Sums):
    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    async def compute_rewards(self, data: DataProto):
        return super().compute_rewards(data[0])


class Slip(Sums):
    def compute_rewards(self, data):
        return data.batch["respones"]


class Further(Sums):
    def compute_rewards(self, data):
        return data.repeat(2)


class OfTheRun(Sums):
    def initialize(self, pipeline_config):
        self.steps = pipeline_config.max_steps


class Own(Sums):
    def compute_rewards(self, data):
        return DataProto.from_dict({"response_level_rewards": torch.tensor([float(self.worker_config.weight)])})


class Loads(Worker):
    def __init__(self, worker_config):
        super().__init__(worker_config)
        self.model = default_reward_model_provider(self.tokenizer, worker_config.model_args)


class Judge(Worker):
    def __init__(self, worker_config):
        super().__init__(worker_config=worker_config)
        self.strategy = InferenceStrategy(worker=self)


class Ends(Sums):
    def compute_rewards(self, data):
        text = self.tokenizer.batch_decode(data.batch["responses"])[0]
        if text == "2":
            os._exit(3)
        return super().compute_rewards(data)


class Nothing(Sums):
    def compute_rewards(self, data):
        pass


class Twice(Sums):
    def compute_rewards(self, data):
        return DataProto.from_dict({"response_level_rewards": torch.zeros(2)})


class Short(Sums):
    def compute_rewards(self, data):
        return DataProto.from_dict({"scores": torch.zeros(1)})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "their_rewards.py").write_text(THEIRS)
    tokenizer = symbol_tokenizer("0123456789+= ")
    tokenizer.save_pretrained(folder / "model")
    tiny_qwen2(len(tokenizer)).save_pretrained(folder / "model")
    return folder


@pytest.fixture(autouse=True)
def importable(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)


@pytest.fixture
def block(folder):
    return {"timeout_s": 60.0, "max_concurrency": 1, "policy": str(folder / "model")}


def sample(text):
    tokenizer = symbol_tokenizer("0123456789+= ")
    prompt = Prompt("sums/0/7", tokenizer.encode("1+1=", add_special_tokens=False), "1+1=", "sums", "sums", "2", {"level": 0.5})
    return Sample(prompt, 0, tokenizer.encode(text, add_special_tokens=False), [], [], "stop", response_text=text)


def judged(config, *texts):
    """What each text earns, asked one after the other, of a process."""

    async def main():
        worker = worker_class(config["worker_cls"])(config)
        try:
            await worker.start()
            return [await worker.result(sample(text)) for text in texts]
        finally:
            await worker.close()

    return asyncio.run(main())


@pytest.mark.slow
def test_a_worker_grades_as_it_does_in_roll(block):
    """One object, on a main thread, judges one response after another; `scores` and metrics are the reward's parts."""
    right, wrong = judged(block | {"worker_cls": "their_rewards.Sums"}, "2", "3")
    assert (right.value, right.parts) == (0.5, {"scores": 0.5, "asked": 1})
    assert (wrong.value, wrong.parts) == (0.0, {"scores": 0.0, "asked": 2})


@pytest.mark.slow
def test_a_call_that_ends_its_process_costs_its_sample(block):
    """The next has a new process."""
    results = judged(block | {"worker_cls": "their_rewards.Ends"}, "2", "3")
    assert [result.error for result in results] == ["RuntimeError: its process died (exit code 3)", None]


def test_a_coroutine_is_awaited_and_reward_args_are_the_configs(block):
    child = RewardChild(block | {"worker_cls": "their_rewards.Awaited", "reward_args": {"reward_type": "double"}})
    assert child.grade(question(sample("2"))) == {"reward": 1.0, "parts": {"scores": 0.5, "asked": 1}}


def test_a_text_that_no_engine_sampled_is_tokenised(block):
    child = RewardChild(block | {"worker_cls": "their_rewards.Sums"})
    assert child.grade(question(replace(sample("2"), response_ids=[])))["reward"] == 0.5
    assert child.grade(question(sample("")))["reward"] == 0


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("Slip", KeyError, "respones is not in the batch, which has attention_mask, input_ids"),
        ("Further", AttributeError, "ROLL's DataProto.repeat is not here; of it there are columns, slices"),
        ("Own", AttributeError, "worker_config.weight is not here; write it into rewards.<domain>.reward_args"),
        ("Short", KeyError, "response_level_rewards is not in the batch, which has scores"),
        ("Nothing", TypeError, "compute_rewards must return a DataProto, not NoneType"),
        ("Twice", ValueError, "was given one response, and returned 2 rows"),
    ],
)
def test_what_it_lacks_is_an_error_with_its_name_and_not_a_reward(block, name, error, says):
    child = RewardChild(block | {"worker_cls": f"their_rewards.{name}"})
    with pytest.raises(error, match=re.escape(says)):
        child.grade(question(sample("2")))


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("OfTheRun", AttributeError, "pipeline_config.max_steps is not here"),
        ("Loads", AttributeError, "'Loads' has no attribute 'tokenizer'; of ROLL's Worker there are worker_config"),
        ("Judge", NotImplementedError, "rewards.<domain>.judge and reward_model have"),
    ],
)
def test_what_its_constructor_lacks_is_said_when_it_is_made(block, name, error, says):
    with pytest.raises(error, match=re.escape(says)):
        RewardChild(block | {"worker_cls": f"their_rewards.{name}"})


def test_a_slip_in_a_process_is_one_here():
    """The trial before a run stops at slips, and lets the world's errors pass."""
    slip = as_raised(CallFailed(["KeyError", "LookupError", "Exception"], "'no column a'"))
    assert isinstance(slip, KeyError) and slip.args == ("no column a",)
    assert isinstance(as_raised(CallFailed(["ModuleNotFoundError", "ImportError", "Exception"], "No module")), ImportError)
    other = as_raised(CallFailed(["ConnectError", "OSError", "Exception"], "refused"))
    assert type(other) is RuntimeError and str(other) == "ConnectError: refused"


@pytest.mark.slow
def test_the_commands_take_such_a_worker(folder, capsys):
    (folder / "train.jsonl").write_text(json.dumps({"tag": "sums", "prompt": "1+1=", "ground_truth": "2", "level": 1}) + "\n")
    lines = [
        f"pretrain: {folder}/model",
        "rollout_batch_size: 2",
        "num_return_sequences_in_group: 2",
        "prompt_length: 8",
        "response_length: 8",
        "actor_train: {device_mapping: '0', training_args: {per_device_train_batch_size: 4}, "
        f"data_args: {{file_name: {folder}/train.jsonl, template: none}}}}",
        "actor_infer: {device_mapping: '1'}",
        "rewards: {sums: {worker_cls: their_rewards.Sums, timeout_s: 60}}",
    ]
    (folder / "run.yaml").write_text("\n".join(lines))
    assert main(["check", "--data", "--config_path", str(folder), "--config_name", "run"]) == 0
    assert "reference answers of 1 prompts earn as responses: 1: 1" in capsys.readouterr().out


def test_names_that_are_not_here_are_named_at_the_import():
    with pytest.raises(
        ImportError, match=r"roll\.distributed\.scheduler\.protocol\.pad_dataproto_to_divisor is not here; .* DataProto"
    ):
        from roll.distributed.scheduler.protocol import pad_dataproto_to_divisor  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'roll\.distributed\.strategy\.factory'"):
        import roll.distributed.strategy.factory  # noqa: F401


def test_a_grading_class_of_ours_keeps_its_own_compute_rewards(tmp_path, monkeypatch):
    """A subclass that has ROLL's method beside our base would never be asked by it."""
    source = "from roll.graders.rules import ExactMatchRewardWorker as Base\n"
    (tmp_path / "mixed_form.py").write_text(source + "class Mixed(Base):\n    def compute_rewards(self, data): return data\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"mixed_form\.Mixed has compute_rewards, .* grade"):
        worker_class("mixed_form.Mixed")


def test_every_name_that_is_offered_is_there():
    for path, (source, names) in NAMES.items():
        for name in names.split() if source else ():
            assert hasattr(importlib.import_module(path), name.partition("=")[0]), (path, name)


def test_a_class_that_such_a_module_lacks_is_refused_by_name():
    module = "roll.pipeline.rlvr.rewards.math_rule_reward_worker"
    with pytest.raises(ValueError, match=rf"'{module}\.Wrong' cannot be imported: .* there are MathRuleRewardWorker"):
        worker_class(f"{module}.Wrong")
    with pytest.raises(ValueError, match=r"No module named 'roll\.pipeline\.rlvr\.rewards\.wrong'"):
        worker_class("roll.pipeline.rlvr.rewards.wrong.MathRuleRewardWorker")


def test_data_of_two_lengths_are_no_batch():
    with pytest.raises(ValueError, match="different lengths"):
        DataProto.from_dict({"a": torch.zeros(2)}, {"b": ["x"]})
    data = DataProto.from_single_dict({"a": torch.arange(3), "b": ["x", "y", "z"]})
    assert len(data) == 3 and data[-1]["b"].tolist() == ["z"] and data[1:]["a"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("text", "pattern", "action"),
    [
        ("<answer>Right</answer>", r"<answer>(.*?)</answer>", {"action": 2, "action_content": "Right", "think_content": ""}),
        (
            "<t>a</t><answer> right </answer>",
            r"<t>(.*)</t><answer>(.*)</answer>",
            {"action": 2, "action_content": "right", "think_content": "a"},
        ),
        ("<answer>Jump</answer>", r"<answer>(.*?)</answer>", {"action": None, "action_content": "Jump", "think_content": ""}),
        ("Right", r"<answer>(.*?)</answer>", {"action": None, "action_content": "", "think_content": ""}),
    ],
)
def test_reading_an_action(text, pattern, action):
    assert default_parser_action_func(text, pattern, {1: "Left", 2: "Right"}, ("<|im_end|>",)) == action
    assert default_parser_action_func("<a>x y</a>", "<a>(.*)</a>", None, None)["action"] == "x y"


def test_a_seed_of_a_block_leaves_the_generators_alone():
    random.seed(5)
    expected = random.Random(5).random()
    with all_seed(7):
        random.random()
    assert random.random() == expected
    assert contains_renderable_field("{history:>3} {turn_idx}", "history") and not contains_renderable_field(
        "{histories}", "history"
    )

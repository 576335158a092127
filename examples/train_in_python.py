"""Trains the embedded model without YAML: `python examples/train_in_python.py`, after `roll demo` has made the model."""

from roll.configs.arguments import TrainDataArguments, TrainingArguments
from roll.configs.rlvr import RLVRConfig
from roll.configs.worker import ActorInferConfig, ActorTrainConfig, RewardConfig
from roll.data.sample import Sample
from roll.pipeline.rlvr.rlvr_pipeline import RLVRPipeline


def digits(sample: Sample) -> float:
    said, right = sample.response_text, sample.prompt.ground_truth
    return sum(a == b for a, b in zip(said, right, strict=False)) / max(len(said), len(right))


training = TrainingArguments(learning_rate=3e-4, lr_scheduler_type="constant", per_device_train_batch_size=256)
prompts = TrainDataArguments(file_name="examples/embedded/cache/train.jsonl", template="none")
config = RLVRConfig(
    pretrain="examples/embedded/cache/model",
    max_steps=20,
    rollout_batch_size=32,
    prompt_length=16,
    response_length=8,
    async_generation_ratio=1,
    actor_train=ActorTrainConfig(device_mapping=[0], training_args=training, data_args=prompts),
    actor_infer=ActorInferConfig(device_mapping=[1]),
    rewards={"arithmetic": RewardConfig(worker_cls=digits)},
)
if __name__ == "__main__":
    print(RLVRPipeline(config, local=True).run()["status"])

"""The algorithm in one file: GRPO with verifiable rewards as a plain loop, one prompt, one response, one reward after another.

    python examples/one_file.py [key=value ...]

trains the embedded model (`roll demo` makes it) for 20 steps. With `async_generation_ratio: 0` and `deterministic: true` a run
has the same weights after every step, bit for bit: a test compares the two. All the rest of the project lets the two halves of
this loop overlap, on many devices, and keeps it alive.

It stands on the project's own pieces, which may move; programs that use the project import from `roll` alone.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace

from roll.api import load_config
from roll.core.algorithms.loss import LossSpec, prepare_batch
from roll.core.configs.derived import derive
from roll.core.configs.rlvr import RLVRConfig
from roll.core.data.sample import Sample, SampleGroup
from roll.core.data.seeding import derive_seed
from roll.core.pipeline.roles import loss_spec, train_spec
from roll.core.trainer.advantages import RLVRAdvantages
from roll.core.trainer.batch import optimiser_batches, token_batch, totals_of
from roll.core.weights.bucket import Bucket, manifest_of
from roll.core.workers.infer_interface import GenerateRequest, SamplingParams, sampling_params
from roll.core.workers.train_backends import make_train_strategy
from roll.core.workers.train_interface import RankContext
from roll.core.workers.train_spec import TrainSpec
from roll.prompts.prompt_file import read_rows
from roll.prompts.prompt_source import PromptSource, tokenize_prompts
from roll.strategies.folder_tokens import folder_tokens
from roll.strategies.infer.hf.strategy import HFInferStrategy
from roll.strategies.model_folder import open_tokenizer


async def plain_loop(
    config: RLVRConfig,
    spec: TrainSpec,
    loss: LossSpec,
    samples_per_update: int,
    sampling: SamplingParams,
    tags: Mapping[str, str],
    grade: Callable[[Sample], float],
) -> AsyncIterator[tuple[list[SampleGroup], list[Bucket]]]:
    """Yields, after each step, the groups that it has trained and the new weights.

    Args:
        spec: the model, and how it is trained.
        samples_per_update: samples of an optimiser step.
        tags: the domain of each tag of the prompt file.
        grade: the reward of a response.
    """
    written = read_rows(config.actor_train.data_args)
    rows, _ = tokenize_prompts(written, open_tokenizer(spec.model_path), "none", config.prompt_length, tags)
    prompts = PromptSource(rows.by_domain(), {}, config.seed)
    trainer = make_train_strategy(RankContext(seed=config.seed, deterministic=True), spec)
    _, _, length = config.lengths()
    engine = HFInferStrategy(spec.model_path, max_running_requests=1, max_length=length, threads=1, deterministic=True)
    advantages, trained = RLVRAdvantages(config), 0
    for step in range(config.max_steps):
        groups: list[SampleGroup] = []
        while len(groups) < config.rollout_batch_size:
            group = SampleGroup(trained + len(groups), step, prompts.next())
            temperatures = [sampling.temperature] * config.num_return_sequences_in_group
            temperatures += [0.0] * (config.adv_estimator == "remax")
            for i, temperature in enumerate(temperatures):
                how = replace(sampling, temperature=temperature, seed=derive_seed(config.seed, group.prompt.uid, i))
                done = await engine.generate(GenerateRequest(str(i), tuple(group.prompt.input_ids), how))
                group.samples.append(
                    Sample(group.prompt, i, done.token_ids, done.logprobs, done.versions, done.finish_reason, done.text)
                )
                group.samples[-1].reward = grade(group.samples[-1])
            if config.adv_estimator == "remax":
                group.baseline = group.samples.pop()
            if worth_training(config, group.rewards):
                groups.append(group)
        trained += len(groups)
        batch, _ = advantages(token_batch(groups, sampling.temperature), groups)
        shuffle = derive_seed(config.seed, "shuffle", step)
        for part in optimiser_batches(batch, len(batch) // samples_per_update, config.ppo_epochs, shuffle):
            trainer.train_step(prepare_batch(part, loss), loss, totals_of(part))
        buckets = list(trainer.export_weights(1 << 20))
        for bucket in buckets:
            await engine.receive_bucket(step + 1, bucket)
        await engine.activate_weights(manifest_of(step + 1, buckets), "interrupt")
        yield groups, buckets
    await engine.close()


def worth_training(config: RLVRConfig, rewards: list[float]) -> bool:
    """False for a group that the filter of the only domain drops: another prompt takes its place."""
    (domain,) = config.rewards.values()
    wish, mean = domain.query_filter_config, sum(rewards) / len(rewards)
    low, high = wish.filter_args.threshold_down, wish.filter_args.threshold_up
    return wish.type == "no_filter" or ((low is None or low < mean) and (high is None or mean < high))


def right(sample: Sample) -> float:
    return float(sample.response_text.strip() == sample.prompt.ground_truth.strip())


async def main(overrides: list[str]) -> None:
    given = ["max_steps=20", "async_generation_ratio=0", "deterministic=true", *overrides]
    config = load_config("examples/config/rlvr_embedded.yaml", given)
    assert isinstance(config, RLVRConfig) and config.pretrain is not None
    derived, spec = derive(config), train_spec(config, derive(config), config.actor_train, config.pretrain)
    ends = folder_tokens(config.pretrain).ends
    sampling = sampling_params(config.actor_infer.generating_args, derived.response_length, ends)
    updates = derived.samples_per_step // derived.optimizer_steps_per_epoch
    steps = plain_loop(config, spec, loss_spec(config, derived), updates, sampling, derived.tag_to_domain, right)
    step = 0
    async for groups, _ in steps:
        step += 1
        rewards = [reward for group in groups for reward in group.rewards]
        print(f"step {step}/{config.max_steps}  reward {sum(rewards) / len(rewards):.3f}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))

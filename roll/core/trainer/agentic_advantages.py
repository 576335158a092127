"""Advantages of episodes and of their turns. Discounts are per turn: an environment's tokens are no actions.

An episode counts once in every comparison, whether it became one sample (TrajEnvManager) or one a turn (StepEnvManager).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from roll.core.algorithms.reward_normalization import normalize_rewards
from roll.core.algorithms.sequence_advantages import clip, sequence_advantages
from roll.core.algorithms.step_advantages import TurnArgs, Turns, state_ids, step_advantages
from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.estimators import STEP_ESTIMATORS, Scope
from roll.core.data.sample import Sample, SampleGroup, Trajectory
from roll.core.data.token_batch import TokenBatch
from roll.core.record.episode_metrics import episode_metrics
from roll.core.trainer.advantages import AdvantageEstimate, Advantages, rollouts_of


class _Layout(NamedTuple):
    """Links between the batch's samples (S), its episodes (E) and turns (K), each in their order."""

    episode_of_sample: Tensor
    """[S]"""
    group_of_episode: Tensor
    """[E]"""
    tag_of_episode: Tensor
    """[E]"""
    score_of_episode: Tensor
    """[E] float32: the reward of its first sample, which a stage of the user's own may have changed."""
    tokens_of_episode: Tensor
    """[E], trained tokens only."""
    turns_after_sample: Tensor
    """[S], turns of the episode that follow the sample's last one."""


class AgenticAdvantages(Advantages):
    discounted = "turn"

    def __init__(self, config: AgenticConfig) -> None:
        super().__init__(config)
        self._agentic = config

    def describe(self, samples: Sequence[Sample]) -> dict[str, float]:
        return episode_metrics(samples)

    def estimate(self, batch: TokenBatch, groups: Sequence[SampleGroup]) -> AdvantageEstimate:
        layout = _layout(batch, groups)
        config, normalization = self._agentic, self._agentic.reward_normalization
        comparable = {"batch": torch.zeros_like(layout.group_of_episode), "tags": layout.tag_of_episode}
        compared = comparable.get(normalization.grouping, layout.group_of_episode)
        rewards = normalize_rewards(layout.score_of_episode, compared, normalization.norm_mean_type, normalization.norm_std_type)
        of_samples = rewards[layout.episode_of_sample]
        if config.adv_estimator in STEP_ESTIMATORS:
            per_token = self._of_turns(batch, groups, layout, clip(rewards, config.reward_clip))
            return AdvantageEstimate(of_samples, clip(per_token, config.reward_clip), of_tokens=True)
        if config.uses_critic:  # an episode is one sample
            return AdvantageEstimate(of_samples, clip(of_samples, config.reward_clip))
        estimated = sequence_advantages(rewards, layout.group_of_episode, config.adv_estimator, layout.tokens_of_episode)
        discount = config.gamma ** layout.turns_after_sample.float()
        return AdvantageEstimate(of_samples, clip(estimated, config.reward_clip)[layout.episode_of_sample] * discount)

    def _of_turns(self, batch: TokenBatch, groups: Sequence[SampleGroup], layout: _Layout, rewards: Tensor) -> Tensor:
        """Returns [N], the advantage of each token's turn."""
        config, normalization = self._agentic, self._agentic.reward_normalization
        samples = [sample for group in groups for sample in group.samples]
        turns = _turns(samples, layout)
        if (config.adv_estimator == "gigpo" or normalization.grouping == "state") and not all(turns.states or ()):
            raise ValueError(
                "adv_estimator: turns are compared at equal states, and an environment does not report its state: "
                "its reset and step have to give info['state_key'], a text that is equal exactly for equal states"
            )
        mean: Scope | None = normalization.norm_mean_type
        if config.adv_estimator == "agentic_reinforce" and (normalization.norm_mean_type or normalization.norm_std_type):
            # A normalisation is of whole episodes: the last turn of an episode earns the normalised score.
            turns = replace(turns, rewards=torch.where(_last_turns(samples), rewards[turns.episode_ids], 0.0))
        elif config.adv_estimator == "step_reinforce":
            turns = replace(turns, task_ids=self._compared_turns(layout, turns))
        elif config.adv_estimator == "gigpo":
            mean = mean or "group"
        arguments = TurnArgs(
            gamma=config.step_reward_gamma,
            mean=mean,
            std=normalization.norm_std_type,
            episode_weight=config.episode_reward_weight,
            step_weight=config.step_reward_weight,
        )
        return _on_tokens(batch, samples, step_advantages(turns, config.adv_estimator, arguments))

    def _compared_turns(self, layout: _Layout, turns: Turns) -> Tensor:
        """Returns [K]; turns with equal numbers are compared with each other."""
        grouping = self._agentic.reward_normalization.grouping
        if grouping == "batch":
            return torch.zeros_like(turns.task_ids)
        if grouping == "tags":
            return layout.tag_of_episode[turns.episode_ids]
        return turns.task_ids if grouping == "traj_group_id" else state_ids(turns)


def _trajectory(sample: Sample) -> Trajectory:
    assert sample.trajectory is not None, "a sample of an agentic run has a trajectory"
    return sample.trajectory


def _turns(samples: Sequence[Sample], layout: _Layout) -> Turns:
    """Returns the turns of the samples in their order, with the reward of each."""
    of_sample = [_trajectory(sample) for sample in samples]
    turns = [turn for trajectory in of_sample for turn in trajectory.turns]
    lengths = torch.tensor([len(trajectory.turns) for trajectory in of_sample])
    episode_ids = layout.episode_of_sample.repeat_interleave(lengths)
    return Turns(
        rewards=torch.tensor([turn.reward for turn in turns], dtype=torch.float32),
        episode_ids=episode_ids,
        positions=torch.tensor([t.first_turn + i for t in of_sample for i in range(len(t.turns))]),
        task_ids=layout.group_of_episode[episode_ids],
        states=[turn.state_key for turn in turns],
    )


def _last_turns(samples: Sequence[Sample]) -> Tensor:
    """Returns [K], True for the last turn of an episode."""
    of_sample = [_trajectory(sample) for sample in samples]
    return torch.tensor([t.first_turn + i == t.num_turns - 1 for t in of_sample for i in range(len(t.turns))])


def _layout(batch: TokenBatch, groups: Sequence[SampleGroup]) -> _Layout:
    episodes, of_sample = rollouts_of(groups)
    tags = sorted({group.prompt.tag for group in groups})
    rewards = [reward for group in groups for reward in group.rewards]
    trajectories = [_trajectory(sample) for group in groups for sample in group.samples]
    trained = batch.sums_per_sample(batch.loss_mask.long())
    return _Layout(
        of_sample,
        torch.tensor([episode.group for episode in episodes]),
        torch.tensor([tags.index(groups[episode.group].prompt.tag) for episode in episodes]),
        torch.tensor([rewards[episode.first] for episode in episodes], dtype=torch.float32),
        torch.zeros(len(episodes), dtype=torch.int64).index_add_(0, of_sample, trained),
        torch.tensor([one.num_turns - one.first_turn - len(one.turns) for one in trajectories]),
    )


def _on_tokens(batch: TokenBatch, samples: Sequence[Sample], values: Tensor) -> Tensor:
    """Returns [N], each turn's value on the policy's tokens of it, 0 elsewhere. `values`: [K] in the order of the samples."""
    on_tokens = torch.zeros(batch.num_tokens, dtype=torch.float32)
    lengths = [turn.tokens for sample in samples for turn in _trajectory(sample).turns]
    policy, stop = np.zeros(batch.num_tokens, np.bool_), 0
    for sample in samples:
        begin = stop + len(sample.prompt.input_ids)
        stop = begin + len(sample.response_ids)
        policy[begin:stop] = True if sample.loss_mask is None else sample.loss_mask
    on_tokens[torch.from_numpy(policy)] = torch.repeat_interleave(values.float(), torch.tensor(lengths))
    return on_tokens

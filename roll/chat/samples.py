"""The samples of an episode: one for each leaf of its forest.

An answer that several leaves share is trained in the first of them; in the others it is context, as what was told is. A sample's
prompt ends where its first trained answer begins. Its turns are the answers that it trains, and over the samples, in the order of
their leaves, each answer is counted once: to advantages, staleness and weights the episode is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roll.chat.answer_text import BEGIN
from roll.chat.conversation import shown
from roll.chat.conversation_tree import Answer, ConversationTree
from roll.core.data.episode import EpisodeTask, Response
from roll.core.data.sample import EpisodeEnd, Prompt, Sample, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of an episode."""

    reward: float
    """Reward of the whole episode, besides those of single answers."""
    success: bool | None
    end: EpisodeEnd
    generation_s: float = 0.0
    environment_s: float = 0.0
    waiting_s: float = 0.0
    metrics: dict[str, float]


def episode_samples(forest: ConversationTree, task: EpisodeTask, outcome: Outcome, turns: Sequence[Turn] = ()) -> list[Sample]:
    """Empty without an answer. `turns`: of the answers, as they were recorded, where an environment says more of them."""
    turn_of = {id(answer): turn for answer, turn in zip(forest.answers, turns, strict=False)}
    leaves = forest.leaves()
    score = outcome.reward + sum(answer.reward for answer in forest.answers)
    trained: set[int] = set()
    samples: list[Sample] = []
    for leaf in leaves:
        path = leaf.path()
        own = [answer for answer in path if id(answer) not in trained]
        own_turns = [turn_of.get(id(answer)) or _turn(answer) for answer in own]
        if leaf is leaves[-1]:
            own_turns[-1].reward += outcome.reward
        trajectory = Trajectory(
            turns=own_turns,
            first_turn=len(trained),
            num_turns=len(forest.answers),
            score=score,
            success=outcome.success,
            end=outcome.end,
            generation_s=outcome.generation_s,
            environment_s=outcome.environment_s,
            waiting_s=outcome.waiting_s,
            metrics=outcome.metrics,
        )
        trained |= {id(answer) for answer in own}
        samples.append(_sample(path, own, task, trajectory))
    return samples


def _sample(path: Sequence[Answer], own: Sequence[Answer], task: EpisodeTask, trajectory: Trajectory) -> Sample:
    """Trains a path's end alone: an answer that another leaf has trained, it has trained with all before it."""
    first = path.index(own[0])
    prompt_ids = [token for answer in path[:first] for token in (*answer.told, *answer.sampled.token_ids)] + own[0].told
    response = Response()
    response.answered(own[0].sampled)
    for answer in own[1:]:
        response.told(answer.told)
        response.answered(answer.sampled)
    text = shown(own[0].conversation[:-1])
    stopped = own[-1].sampled.stopped and trajectory.end != "context"
    return Sample(
        prompt=Prompt(task.uid, prompt_ids, text, task.tag, task.tag, "", {"env_seed": task.env_seed}),
        index=task.index,
        response_ids=response.ids,
        behaviour_logprobs=response.logprobs,
        extras=response.extras,
        versions=response.versions,
        finish_reason="stop" if stopped else "length",
        response_text="\n".join(turn.action for turn in trajectory.turns),
        reward=trajectory.score,
        loss_mask=response.mask,
        trajectory=trajectory,
    )


def _turn(answer: Answer) -> Turn:
    return Turn(
        observation=shown(answer.news),
        action=answer.sampled.text,
        reward=answer.reward,
        state_key="",
        is_valid=bool(answer.reply.calls) or BEGIN not in answer.sampled.text,
        is_effective=True,
        tokens=len(answer.sampled.token_ids),
        exchange="" if answer.exchange is None else answer.exchange.text,
        times=answer.times,
    )

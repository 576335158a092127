"""A world small enough to enumerate: a tabular softmax policy over all short sequences. Every expectation is an exact sum.

A sequence ends with token 0 (end of sequence) or at the maximal length. The parameters are the logits of each prefix, so any
policy over sequences can be reached. Losses are the product's own, evaluated on each sequence as a batch of one;
their expectation over the behaviour policy is then exact, and so are bias and variance of the gradient they give.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from roll.core.algorithms.loss import LossSpec, compute_loss, prepare_batch
from roll.core.algorithms.pg_variants import get_policy_loss
from roll.core.algorithms.policy_loss import traits_of
from roll.core.algorithms.sequence_advantages import sequence_advantages
from roll.core.data.kept_tokens import KeptSets
from roll.core.data.token_batch import TokenBatch
from roll.strategies.infer.hf.sampling import truncate
from roll.strategies.train.logprobs import head_logprobs

END = 0


@dataclass(frozen=True)
class World:
    """S sequences of at most T tokens over a vocabulary of V, and what each earns."""

    vocabulary: int = 3
    length: int = 3
    seed: int = 0
    binary: bool = True
    """Rewards of 0 and 1, else real numbers."""

    @cached_property
    def sequences(self) -> list[tuple[int, ...]]:
        found = []
        for length in range(1, self.length + 1):
            for tokens in itertools.product(range(self.vocabulary), repeat=length):
                if END not in tokens[:-1] and (tokens[-1] == END or length == self.length):
                    found.append(tokens)
        return found

    @cached_property
    def prefixes(self) -> dict[tuple[int, ...], int]:
        """The states: a row of logits each."""
        return {prefix: i for i, prefix in enumerate(sorted({s[:t] for s in self.sequences for t in range(len(s))}))}

    @cached_property
    def _padded(self) -> tuple[Tensor, Tensor, Tensor]:
        tokens = torch.zeros(len(self.sequences), self.length, dtype=torch.int64)
        states, mask = tokens.clone(), tokens.bool()
        for i, sequence in enumerate(self.sequences):
            for t, token in enumerate(sequence):
                tokens[i, t], states[i, t], mask[i, t] = token, self.prefixes[sequence[:t]], True
        return tokens, states, mask

    @property
    def mask(self) -> Tensor:
        """[S, T] bool."""
        return self._padded[2]

    @cached_property
    def rewards(self) -> Tensor:
        """[S] float64."""
        values = torch.rand(len(self.sequences), dtype=torch.float64, generator=torch.Generator().manual_seed(self.seed))
        return (values < 0.35).double() if self.binary else values

    def policy(self, seed: int, scale: float = 0.5) -> Tensor:
        """[P, V] logits of a random policy."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(len(self.prefixes), self.vocabulary, dtype=torch.float64, generator=generator) * scale

    def logprobs(self, logits: Tensor) -> Tensor:
        """[S, T], 0 outside the mask."""
        tokens, states, mask = self._padded
        return torch.where(mask, logits.log_softmax(-1)[states, tokens], 0.0)

    def probabilities(self, logits: Tensor) -> Tensor:
        """[S] of whole sequences; they sum to 1."""
        return self.logprobs(logits).sum(1).exp()

    def values(self, logits: Tensor) -> Tensor:
        """[S, T] the expected reward of going on from the state before each token."""
        probabilities = self.probabilities(logits)
        states = self._padded[1]
        expected = torch.zeros_like(states, dtype=torch.float64)
        for prefix, index in self.prefixes.items():
            through = torch.tensor([sequence[: len(prefix)] == prefix for sequence in self.sequences])
            value = (probabilities * self.rewards)[through].sum() / probabilities[through].sum()
            expected = torch.where(self.mask & (states == index), value, expected)
        return expected

    def gradient(self, objective: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
        """[P · V] of a scalar function of the logits."""
        leaf = logits.clone().requires_grad_()
        return torch.autograd.grad(objective(leaf), leaf)[0].flatten()

    def true_gradient(self, logits: Tensor) -> Tensor:
        """Of the expected reward, by differentiating the sum over all sequences."""
        return self.gradient(lambda leaf: self.probabilities(leaf) @ self.rewards, logits)

    def scores(self, logits: Tensor) -> Tensor:
        """[S, P · V] ∇ log π of each sequence."""
        return torch.stack(
            [self.gradient(lambda leaf, i=i: self.logprobs(leaf)[i].sum(), logits) for i in range(len(self.sequences))]
        )

    def ascent(self, logits: Tensor, steps: int, rate: float) -> list[Tensor]:
        """Policies of a training run: `steps` exact gradient steps from `logits`, first and last included."""
        policies = [logits]
        for _ in range(steps):
            policies.append(policies[-1] + rate * self.true_gradient(policies[-1]).view_as(logits))
        return policies

    def group_expectation(self, logits: Tensor, size: int, advantages: Callable[[Tensor], Tensor]) -> Tensor:
        """[P · V] exact expectation, over all groups of `size` samples, of the group's mean of A_i · ∇ log π(y_i).

        `advantages`: of the numbers [G · size] of the sequences in all the groups, one group after the other."""
        count = len(self.sequences)
        groups = torch.cartesian_prod(*[torch.arange(count)] * size)
        weights = self.probabilities(logits)[groups].prod(1) / size
        given = weights[:, None] * advantages(groups.flatten()).view_as(groups)
        by_sequence = torch.zeros(count, dtype=torch.float64).index_add(0, groups.flatten(), given.flatten())
        return by_sequence @ self.scores(logits)


@dataclass(frozen=True)
class CutWorld(World):
    """In which tokens are sampled from what top_p and top_k keep of the policy `kept_of`; log-probs are over what is kept, as a
    batch with kept sets has them."""

    kept_of: Tensor | None = None
    """[P, V] logits."""
    top_p: float = 1.0
    top_k: int = 0

    @cached_property
    def kept(self) -> KeptSets:
        """Of the states."""
        assert self.kept_of is not None
        top_k = torch.full((len(self.kept_of), 1), self.top_k or self.vocabulary)
        left = truncate(self.kept_of.softmax(-1), top_k, torch.full(top_k.shape, self.top_p, dtype=torch.float64))
        return KeptSets((left > 0).sum(1), left.nonzero()[:, 1])

    def logprobs(self, logits: Tensor) -> Tensor:
        """[S, T], as the head of a model says them whose hidden states name the states; -inf where a token is never sampled."""
        tokens, states, mask = self._padded
        at = states[mask]
        hidden = torch.nn.functional.one_hot(at, len(self.prefixes)).double()
        said, _ = head_logprobs(hidden, logits.t(), None, tokens[mask], torch.ones(len(at)), kept=self.kept[at])
        return torch.zeros(mask.shape, dtype=torch.float64).masked_scatter(mask, said)


def baseline_expectation(world: World, policy: Tensor, estimator: str, size: int) -> Tensor:
    """[P · V] exact expectation of the policy gradient with the advantages of an estimator, in groups of `size` samples."""

    def advantages(numbers: Tensor) -> Tensor:
        groups = torch.arange(len(numbers) // size).repeat_interleave(size)
        return sequence_advantages(world.rewards[numbers], groups, estimator, world.mask.sum(1)[numbers])

    return world.group_expectation(policy, size, advantages)


@dataclass(frozen=True)
class Estimate:
    """The update direction (minus the loss gradient) of one sample of the behaviour policy, over all samples."""

    mean: Tensor
    """[P · V]."""
    variance: float
    """Trace of the covariance."""


def estimate(
    world: World, spec: LossSpec, current: Tensor, behaviour: Tensor, advantages: Tensor, sampled: World | None = None
) -> Estimate:
    """What the loss `spec` does on samples of the policy `behaviour` at the policy `current`, with [S] advantages. `sampled`: the
    same world, with another way to sample than the one that log-probs are told of.

    A variant that needs the step's first weights gets the current ones: the first optimiser step of a step."""
    needs_proximal = traits_of(get_policy_loss(spec.pg_variant)).needs_proximal
    gradients, weights = [], (sampled or world).probabilities(behaviour)
    for i in range(len(world.sequences)):
        if weights[i] == 0:
            gradients.append(torch.zeros(current.numel(), dtype=current.dtype))
            continue

        def loss(leaf: Tensor, i: int = i) -> Tensor:
            length = int(world.mask[i].sum())
            logprobs = world.logprobs(leaf)[i, :length]
            start = logprobs.new_zeros(1)  # the prompt: one token, not trained
            row = torch.cat([start, logprobs])
            batch = TokenBatch(
                lengths=torch.tensor([1 + length]),
                scores=world.rewards[i : i + 1],
                temperatures=torch.ones(1),
                tokens=torch.zeros(1 + length, dtype=torch.int64),
                loss_mask=torch.arange(1 + length) > 0,
                behaviour_logprobs=torch.cat([start, world.logprobs(behaviour)[i, :length]]),
                advantages=torch.cat([start, advantages[i].expand(length)]),
                proximal_logprobs=row.detach() if needs_proximal else None,
            )
            value, _ = compute_loss(row[None], None, prepare_batch(batch, spec).padded(), spec, length, 1)
            return -value

        gradients.append(world.gradient(loss, current))
    each = torch.stack(gradients)
    mean = weights @ each
    return Estimate(mean, float(weights @ (each - mean).square().sum(1)))

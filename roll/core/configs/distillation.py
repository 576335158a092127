"""Learning of the policy from its teachers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from roll.core.configs.fields import Bounds, option


@dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """Objective of learning from teachers. π: the policy, p: a teacher, both at the sampling temperature. The weight is that of
    each teacher, opd_kl_coef."""

    kd_objective: Literal["policy_gradient", "forward_kl", "reverse_kl", "js_divergence"] = option(
        "policy_gradient",
        "policy_gradient: log p - log π of each sampled token is added to its advantage.\n"
        "forward_kl: KL(p ‖ π) of each token's distribution is a loss of its own.\n"
        "reverse_kl: KL(π ‖ p) is.\n"
        "js_divergence: kd_beta·KL(p ‖ m) + (1 - kd_beta)·KL(π ‖ m) is, with m = kd_beta·p + (1 - kd_beta)·π.",
    )
    kd_beta: float = option(0.5, "js_divergence: the teacher's share of the mixture.", bounds=Bounds(gt=0, lt=1))
    logits_topk: int = option(
        64,
        "Divergences: the teacher gives the probabilities of its so many most probable tokens; all other tokens are one, whose "
        "probability is the rest. From the size of the vocabulary on nothing is left to the rest.",
        bounds=Bounds(ge=1),
    )

    @property
    def beta(self) -> float | None:
        """The teacher's share of the mixture, 0 and 1 for the KL divergences; None: the loss has no divergence."""
        return {"forward_kl": 0.0, "reverse_kl": 1.0, "js_divergence": self.kd_beta}.get(self.kd_objective)

    @property
    def top(self) -> int:
        """Number of tokens to which a teacher gives probabilities, besides the sampled one."""
        return 0 if self.beta is None else self.logits_topk

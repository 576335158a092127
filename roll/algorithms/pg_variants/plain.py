"""Losses without an importance weight: −A·ℓ, shifted, scaled or regularised."""

from __future__ import annotations

from torch import Tensor

from roll.algorithms.policy_loss import LossInputs, built_in
from roll.configs.losses import PolicyLossArgs


@built_in("reinforce")
@built_in("vanilla")
def vanilla(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """REINFORCE: −A·ℓ. No off-policy correction."""
    return -inputs.advantages * inputs.logprobs, {}


@built_in("gpg")
def gpg(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """Group Policy Gradient (arXiv 2504.02546): −A·ℓ; what sets it apart is its advantage, `adv_estimator: gpg`."""
    return -inputs.advantages * inputs.logprobs, {}


@built_in("opmd")
def opmd(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """Online policy mirror descent, the simple form (Trinity-RFT, arXiv 2505.17826): −A·ℓ / (1 + τ), A = R − mean."""
    return -inputs.advantages * inputs.logprobs / (1 + args.opmd_tau), {}


@built_in("asymre")
def asymre(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """Asymmetric REINFORCE (arXiv 2506.20520): −(A − δV)·ℓ. A baseline below the mean (δV < 0) leans on the good samples."""
    return -(inputs.advantages - args.asymre_baseline_shift) * inputs.logprobs, {}


@built_in("kimi15")
def kimi15(inputs: LossInputs, args: PolicyLossArgs) -> tuple[Tensor, dict[str, Tensor]]:
    """Kimi k1.5's mirror descent, per token (arXiv 2501.12599): −A·ℓ + τ/2·(ℓ − ℓ_a)²."""
    penalty = inputs.log_ratio.square() * (args.kimi15_tau / 2)
    return -inputs.advantages * inputs.logprobs + penalty, {"kimi15_penalty": penalty.detach().sum()}

"""The built-in policy-gradient losses by family; importing this package registers them.

In the formulas: ℓ log-prob, ℓ_a that of the anchor policy, r = exp(ℓ − ℓ_a), A advantage, sg stop-gradient, |y| the trained
tokens of a sequence, Σ_y a sum over them.
"""

from roll.algorithms.pg_variants import clipping, plain, truncation, trust_region

__all__ = ["clipping", "plain", "truncation", "trust_region"]

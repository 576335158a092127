"""The built-in policy losses by family. What a configuration knows of them stands in `roll.configs.losses`.

In the formulas: ℓ log-prob, ℓ_a that of the anchor policy, r = exp(ℓ − ℓ_a), A advantage, sg stop-gradient, |y| the trained
tokens of a sequence, Σ_y a sum over them.
"""

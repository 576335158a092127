"""Drafted tokens (`speculative_config`): a request's own n-grams propose its next tokens, and one forward verifies them.

Rejection sampling ([arXiv 2211.17192](https://arxiv.org/abs/2211.17192)) accepts a draft x with probability p(x), for a proposal
of n-grams is certain, and else draws from p without x. So each token has the policy's distribution p, whatever was proposed, and
its log-prob is that of p. Proposals have no weights that an update would have to reach.
"""

from __future__ import annotations

from collections.abc import Mapping

KEYS = {"method": None, "num_speculative_tokens": 1, "prompt_lookup_min": 1, "prompt_lookup_max": 1}
"""Keys of `speculative_config`, and their least values."""


def check_drafts(value: object) -> None:
    """`ValueError` for drafts whose tokens are not shown to be the policy's."""
    if not isinstance(value, Mapping):
        raise ValueError("is not a mapping: {method: ngram, num_speculative_tokens: 4, prompt_lookup_max: 4}")
    if value.get("method") != "ngram":
        raise ValueError(
            f"has method {value.get('method')!r}: only ngram is shown to sample the policy; models and heads that draft have "
            "weights of their own, which weight updates do not reach"
        )
    if unknown := sorted(map(str, set(value) - set(KEYS))):
        raise ValueError(f"has {', '.join(unknown)}: it takes {', '.join(KEYS)}")
    if "num_speculative_tokens" not in value:
        raise ValueError("has no num_speculative_tokens: tokens proposed at a time, e.g. 4")
    for name, least in KEYS.items():
        given = value.get(name, least)
        if least is not None and (type(given) is not int or given < least):
            raise ValueError(f"has {name} = {given!r}: a whole number from {least} on")

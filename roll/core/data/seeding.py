"""One seed from many names. Every random decision of a run derives its seed from its own subject, never from a shared stream,
so it does not depend on the order of events."""

from __future__ import annotations

import hashlib

SEEDS = 2**63


def derive_seed(*parts: int | str) -> int:
    """Returns a seed in [0, 2**63), a function of the parts alone: the same in every process, on every machine.

    Different tuples give different seeds (up to hash collisions): `1` is not `"1"`, and `("ab", "c")` is not `("a", "bc")`."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big") >> 1

"""What becomes of every key and value of ROLL's RLVR and agentic YAML files that is not read here as it stands.

The one table: loading applies it, and docs_roll/roll_compatibility.md is made from it. surface.py lists ROLL's keys; each is
a field of the dataclasses or has a rule here (tests/configs/test_keys.py). Of several rules the first that fits counts.
"""

from __future__ import annotations

from roll.compat.roll.keys_megatron import MEGATRON
from roll.compat.roll.keys_roles import MODEL, ROLE, SAMPLING, STRATEGY, TRAINING
from roll.compat.roll.keys_run import ALGORITHM, RUN
from roll.compat.roll.keys_tasks import AGENTIC, DATA, REWARDS
from roll.compat.roll.keys_verl import VERL
from roll.compat.roll.rule import KeyRule

RULES: tuple[KeyRule, ...] = (
    *RUN,
    *ALGORITHM,
    *ROLE,
    *MODEL,
    *TRAINING,
    *SAMPLING,
    *DATA,
    *REWARDS,
    *AGENTIC,
    *STRATEGY,
    *MEGATRON,
    *VERL,
)

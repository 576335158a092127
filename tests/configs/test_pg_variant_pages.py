"""The pages of docs_roll/pg_variants: one for each variant, with every key of its own and the default that it really has."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from roll.core.configs.losses import POLICY_LOSSES
from roll.core.configs.rlvr import RLVRConfig
from roll.core.configs.worker import ActorTrainConfig

PAGES = Path(__file__).parents[2] / "docs_roll" / "pg_variants"
ROW = re.compile(r"^\| `(\w+)` \| `([^`]+)` \|", re.MULTILINE)


@pytest.mark.parametrize("variant", POLICY_LOSSES)
def test_the_page_of_a_variant_tells_its_keys_and_defaults(variant):
    page = (PAGES / f"{variant}.md").read_text()
    assert page.startswith(f"# `{variant}`")
    assert "**Source.**" in page
    told = dict(ROW.findall(page))
    own = {item.name for item in fields(ActorTrainConfig) if item.name.startswith(f"{variant}_")}
    assert own <= told.keys()
    for key, shown in told.items():
        default = getattr(ActorTrainConfig(), key) if hasattr(ActorTrainConfig(), key) else getattr(RLVRConfig(), key)
        right = "null" if default is None else str(default).lower() if isinstance(default, bool) else default
        assert type(default)(float(shown)) == right if isinstance(default, float) else shown == right


def test_the_index_links_every_page_and_says_which_need_recomputed_log_probs():
    index = (PAGES / "index.md").read_text()
    rows = dict(re.findall(r"^\| \[`(\w+)`\]\(\1\.md\) \| [^|]+ \| (yes|no) \|", index, re.MULTILINE))
    assert sorted(rows) == sorted(POLICY_LOSSES)
    assert {name for name, needs in rows.items() if needs == "yes"} == {
        name for name, loss in POLICY_LOSSES.items() if loss.needs_proximal
    }
    assert {path.stem for path in PAGES.glob("*.md")} == {*POLICY_LOSSES, "index", "choosing", "claims_sums"}

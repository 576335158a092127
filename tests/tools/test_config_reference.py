from functools import cache
from pathlib import Path

from config_reference import page

from roll.core.configs.agentic import AgenticConfig
from roll.core.configs.rlvr import RLVRConfig
from roll.plan.rows_config import DPOConfig, SFTConfig

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs_roll" / "configuration.md"


@cache
def text() -> str:
    return page(RLVRConfig, AgenticConfig, SFTConfig, DPOConfig)


def rows_of(section: str) -> dict[str, list[str]]:
    """Cells of a section's table by key."""
    table = text().split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_the_page_in_the_repository_is_current():
    command = "python tools/config_reference.py > docs_roll/configuration.md"
    assert PAGE.read_text() == text(), f"make it again: {command}"


def test_a_key_has_its_type_default_meaning_and_range():
    kind, default, meaning = rows_of("`actor_train.training_args`")["learning_rate"]
    assert (kind, default) == ("number", "`1e-06`")
    assert "AdamW" in meaning and "(&gt; 0)" not in meaning and "(> 0)" in meaning


def test_a_role_shows_its_own_defaults_not_those_of_the_block_it_shares():
    assert rows_of("`actor_train.strategy_args`")["strategy_name"][1] == "`fsdp2_train`"
    assert rows_of("`actor_infer.strategy_args`")["strategy_name"][1] == "`hf_infer`"


def test_what_the_user_must_give_is_marked():
    assert rows_of("`rewards.<name>`")["worker_cls"][1] == "required"


def test_keys_of_one_pipeline_stand_apart():
    assert "rewards" in rows_of("Top level, RLVR only")
    assert "custom_envs" in rows_of("Top level, agentic only")
    assert {"total_epochs", "validation"} <= rows_of("Top level, SFT and DPO only").keys()
    assert "sft" in rows_of("Top level, SFT only") and "dpo" in rows_of("Top level, DPO only")
    shared = rows_of("Top level")
    assert "max_steps" in shared and not {"rewards", "custom_envs", "prompt_length"} & shared.keys()


def test_links_lead_to_headings():
    headings = {line.removeprefix("## ").lower() for line in text().splitlines() if line.startswith("## ")}
    anchors = {"".join(c for c in heading if c.isalnum() or c in "_- ").replace(" ", "-") for heading in headings}
    links = {part.split(")", 1)[0] for part in text().split("](#")[1:]}
    assert links and links <= anchors

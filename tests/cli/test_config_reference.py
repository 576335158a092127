import ast
from functools import cache
from pathlib import Path

import pytest

from roll.cli.config_reference import page
from roll.cli.key_readers import readers
from roll.configs.agentic import AgenticConfig
from roll.configs.rlvr import RLVRConfig

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs_roll" / "configuration.md"


@cache
def text() -> str:
    return page(RLVRConfig, AgenticConfig)


def rows_of(section: str) -> dict[str, list[str]]:
    """Cells of a section's table by key."""
    table = text().split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_the_page_in_the_repository_is_current():
    command = "python -m roll.cli.config_reference > docs_roll/configuration.md"
    assert PAGE.read_text() == text(), f"make it again: {command}"


def test_a_key_has_its_type_default_meaning_range_and_readers():
    kind, default, meaning, modules = rows_of("`actor_train.training_args`")["learning_rate"]
    assert (kind, default) == ("number", "`1e-06`")
    assert "AdamW" in meaning and "(&gt; 0)" not in meaning and "(> 0)" in meaning
    assert modules == "`pipeline.roles`"


def test_a_role_shows_its_own_defaults_not_those_of_the_block_it_shares():
    assert rows_of("`actor_train.strategy_args`")["strategy_name"][1] == "`fsdp2_train`"
    assert rows_of("`actor_infer.strategy_args`")["strategy_name"][1] == "`hf_infer`"


def test_what_the_user_must_give_is_marked():
    assert rows_of("`rewards.<name>`")["worker_cls"][1] == "required"


def test_keys_of_one_pipeline_stand_apart():
    assert "rewards" in rows_of("Top level, RLVR only")
    assert "custom_envs" in rows_of("Top level, agentic only")
    shared = rows_of("Top level")
    assert "max_steps" in shared and not {"rewards", "custom_envs", "prompt_length"} & shared.keys()


def test_links_lead_to_headings():
    headings = {line.removeprefix("## ").lower() for line in text().splitlines() if line.startswith("## ")}
    anchors = {"".join(c for c in heading if c.isalnum() or c in "_- ").replace(" ", "-") for heading in headings}
    links = {part.split(")", 1)[0] for part in text().split("](#")[1:]}
    assert links and links <= anchors


READS = {
    "def f(config: RLVRConfig): return config.max_steps": ("BaseConfig", "max_steps"),
    "def f(c: RLVRConfig):\n    t = c.actor_train.training_args\n    return t.learning_rate": (
        "TrainingArguments",
        "learning_rate",
    ),
    "def f(c: PPOConfig | None):\n    for r in (c.actor_train, c.actor_infer):\n        r.device_mapping": (
        "WorkerConfig",
        "device_mapping",
    ),
    "def f(c: RLVRConfig): return {n: r.world_size for n, r in c.rewards.items()}": ("RewardConfig", "world_size"),
    "class A:\n    def g(self): return self.c.gamma\n    def __init__(self, c: PPOConfig): self.c = c": ("PPOConfig", "gamma"),
    "def f(w: object):\n    if isinstance(w, ActorTrainConfig): return w.pg_variant": ("ActorTrainConfig", "pg_variant"),
    "def f(w: ActorTrainConfig): return w.strategy_args.options.reshard_after_forward": ("FSDP2Config", "reshard_after_forward"),
    "def f(w: RewardConfig): return asdict(w.query_filter_config)": ("QueryFilterArgs", "threshold_up"),
    "class B(A):\n    def g(self): return self.c.seed\nclass A:\n    def __init__(self, c: PPOConfig): self.c = c": (
        "BaseConfig",
        "seed",
    ),
    "class Own:\n    kimi15_tau: float\ndef f(w: ActorTrainConfig): return [getattr(w, i.name) for i in fields(Own)]": (
        "ActorTrainConfig",
        "kimi15_tau",
    ),
}
NO_READS = [
    "def f(sample): return sample.prompt",
    "max_steps = 3",
    "def f(config: RLVRConfig): config.max_steps = 3",
    "def f(c: RLVRConfig):\n    def g(c): return c.max_steps\n    return g",
]


@pytest.mark.parametrize("source", READS)
def test_a_read_is_found_by_the_type_of_its_expression(source, tmp_path):
    (tmp_path / "module.py").write_text(source)
    assert readers(tmp_path, [RLVRConfig, AgenticConfig])[READS[source]] == ["module"]


@pytest.mark.parametrize("source", NO_READS)
def test_a_name_alone_is_no_read(source, tmp_path):
    ast.parse(source)
    (tmp_path / "module.py").write_text(source)
    assert readers(tmp_path, [RLVRConfig, AgenticConfig]) == {}


def test_modules_that_only_check_are_no_readers(tmp_path):
    source = "def f(config: RLVRConfig): return config.max_steps"
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "validation.py").write_text(source)
    (tmp_path / "configs" / "derived.py").write_text(source)
    assert readers(tmp_path, [RLVRConfig])[("BaseConfig", "max_steps")] == ["configs.derived"]

"""The pieces of YAML, JSON and Python that README and the documentation print work. Commands: test_commands.py; tutorials, with
their files: test_tutorials.py."""

import json

import pytest
import yaml
from printed import BLOCK, PAGES, ROOT, blocks

from roll.compat.roll.pipelines import CONFIGS, pipeline_of
from roll.plan.rules.loading import load_config
from roll.prepare.compose import compose, load
from roll.prepare.pipeline import Pipeline
from roll.simulate.costs import Costs, read_costs

EXAMPLES = {"rlvr": "rlvr_config_async", "agentic": "agent_val_frozen_lake_async", "sft": "sft_config", "dpo": "dpo_config"}
COSTS_PAGE = ROOT / "docs_roll/simulate.md"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(block, id=f"{page.relative_to(ROOT)}: {block.split()[0]}")
        for page, block in blocks("yaml")
        if page != COSTS_PAGE
    ],
)
def test_a_printed_piece_of_yaml_loads_with_an_example_around_it(text):
    parents = {0: [], 2: ["rewards"], 4: ["rewards", "math"]}[len(text) - len(text.lstrip(" "))]
    piece = yaml.safe_load(text)
    if parents[1:]:
        piece.setdefault("worker_cls", "llm_judge")
    for parent in reversed(parents):
        piece = {parent: piece}
    piece = {key: value for key, value in piece.items() if key not in ("defaults", "hydra")}
    kind = "agentic" if "env_manager" in text else pipeline_of(piece)
    whole = compose(ROOT / "examples/config", EXAMPLES[kind])
    load_config(CONFIGS[kind], merged(whole, piece))


def test_the_printed_table_of_costs_is_one():
    (text,) = (block for page, block in blocks("yaml") if page == COSTS_PAGE)
    costs = read_costs(text, "printed", Costs())
    assert (costs.response_tokens.mean, costs.decode_rate(16) * 16) == (800, 700)


def merged(whole, piece):
    """A block that names another class or strategy replaces that of the example."""
    if not (isinstance(whole, dict) and isinstance(piece, dict)) or "strategy_name" in piece or "worker_cls" in piece:
        return piece
    return whole | {key: merged(whole.get(key), value) for key, value in piece.items()}


@pytest.mark.parametrize(("page", "text"), blocks("json"), ids=lambda part: getattr(part, "stem", ""))
def test_a_printed_row_is_one(page, text):
    assert all(json.loads(line) for line in text.splitlines())


@pytest.mark.parametrize("page", sorted({page for page, _ in blocks("python")}), ids=lambda page: page.name)
def test_a_page_of_python_runs_from_top_to_bottom(page, embedded_task, tmp_path, monkeypatch):
    """Up to the run itself, which has tests of its own; `config` is the reader's."""
    started = []
    (tmp_path / "examples/embedded").mkdir(parents=True)
    (tmp_path / "examples/embedded/cache").symlink_to(embedded_task)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Pipeline, "run", lambda pipeline: started.append(pipeline.config))
    names = {"__name__": "a_page", "config": load(ROOT / "examples/config", "rlvr_config_async")[0]}
    for other, text in blocks("python"):
        if other == page:
            exec(compile(text, str(page), "exec"), names)
    assert len(started) == page.read_text().count(".run()  #") + page.read_text().count(".run()\n```") + page.read_text().count(
        "roll.train(\n"
    )


def test_a_block_is_of_a_kind_that_is_tested_or_is_text():
    tested = {"", "bash", "python", "yaml", "json", "mermaid"}  # commands, code, configurations, rows; test_flow.py
    assert {block[1] for page in PAGES for block in BLOCK.findall(page.read_text())} == tested | {"text"}

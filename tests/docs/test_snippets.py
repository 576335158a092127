"""What README and the documentation print can be typed: commands, options, keys of configurations, pieces of Python.

Commands are parsed and their configurations loaded; starting them is the business of the commands' own tests. A line with a
placeholder (`...`, `DIR`, `<head>`, `my_...`) is only looked at as far as it is meant literally.
"""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from roll.cli.compose import compose, load
from roll.cli.main import COMMANDS
from roll.cli.options import config_folder
from roll.configs.agentic import AgenticConfig
from roll.configs.loading import load_config
from roll.configs.pipelines import pipeline_of
from roll.configs.problems import ConfigError
from roll.configs.rlvr import RLVRConfig
from roll.pipeline.pipeline import Pipeline

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs_roll").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    ROOT / "benchmarks/README.md",
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PLACEHOLDER = re.compile(r"\.\.\.|DIR|<\w+>|my_(configs|run|sets)|\$")
START = re.compile(r"(?:\S*python |bash |roll |make )")
LOADED = {"train": "rlvr_config_async", "check": "rlvr_config_async", "flow": "rlvr_config_async"}


def blocks(*languages):
    return [(page, block[2]) for page in PAGES for block in BLOCK.finditer(page.read_text()) if block[1] in languages]


def commands():
    for page, block in blocks("", "bash"):
        folder = ROOT
        for line in block.replace("\\\n", " ").splitlines():
            line = re.sub(r"^(\$ |(?:[A-Z_]+=\S+ )+)", "", line.strip())
            if line.startswith("cd examples/"):
                folder = ROOT / line.split()[1]
            elif START.match(line):
                yield pytest.param(folder, shlex.split(line, comments=True), id=f"{page.relative_to(ROOT)}: {line[:60]}")


@pytest.mark.parametrize(("folder", "words"), list(commands()))
def test_a_printed_command_is_one(folder, words, monkeypatch):
    monkeypatch.chdir(folder)
    program, rest = words[0], words[1:]
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert rest[0] in targets
    elif program == "bash":
        assert Path(rest[0]).is_file()
    elif program == "roll":
        assert rest[0] in COMMANDS
        if rest[0] in LOADED:
            check_configuration([word for word in rest[1:] if word not in ("rlvr", "agentic")], LOADED[rest[0]])
    else:
        script = Path(rest[0])
        if not script.is_file():  # python -m
            pytest.skip("no script of the project")
        if script.name.startswith("start_"):
            name = "agent_val_frozen_lake_async" if "agentic" in script.name else "rlvr_config_async"
            check_configuration(rest[1:], name)
        else:
            source = "".join(file.read_text() for file in script.parent.glob("*.py"))
            unknown = [option for option in re.findall(r"--[a-z][\w-]*", " ".join(rest)) if f'"{option}"' not in source]
            assert not [option for option in unknown if option != "--help"]


def check_configuration(words, name):
    """The configuration loads with all its overrides."""
    options = {word: words[i + 1] for i, word in enumerate(words) if word in ("--config_path", "--config_name", "--svg")}
    values = set(options.values())
    if any(PLACEHOLDER.search(word) for word in (*options.values(), words[0] if words else "")) or "--compat" in words:
        pytest.skip("a configuration of the reader's own")
    overrides = [word for word in words if "=" in word and word not in values and not PLACEHOLDER.search(word)]
    overrides += [word for word in words if word.startswith("~")]
    folder = config_folder(options.get("--config_path", "examples/config"))
    load(folder, options.get("--config_name", name), overrides)


@pytest.mark.parametrize(
    "text", [pytest.param(block, id=f"{page.relative_to(ROOT)}: {block.split()[0]}") for page, block in blocks("yaml")]
)
def test_a_printed_piece_of_yaml_loads_with_an_example_around_it(text):
    parents = {0: [], 2: ["rewards"], 4: ["rewards", "math"]}[len(text) - len(text.lstrip(" "))]
    piece = yaml.safe_load(text)
    if parents[1:]:
        piece.setdefault("worker_cls", "llm_judge")
    for parent in reversed(parents):
        piece = {parent: piece}
    piece = {key: value for key, value in piece.items() if key not in ("defaults", "hydra")}
    agentic = pipeline_of(piece) == "agentic" or "env_manager" in text
    whole = compose(ROOT / "examples/config", "agent_val_frozen_lake_async" if agentic else "rlvr_config_async")
    load_config(AgenticConfig if agentic else RLVRConfig, merged(whole, piece))


def merged(whole, piece):
    """A block that names another class or strategy replaces that of the example."""
    if not (isinstance(whole, dict) and isinstance(piece, dict)) or "strategy_name" in piece or "worker_cls" in piece:
        return piece
    return whole | {key: merged(whole.get(key), value) for key, value in piece.items()}


@pytest.mark.parametrize("page", sorted({page for page, _ in blocks("python")}), ids=lambda page: page.name)
def test_a_page_of_python_runs_from_top_to_bottom(page, monkeypatch):
    """Up to the run itself, which has tests of its own; `config` is the reader's."""
    started = []
    monkeypatch.setattr(Pipeline, "run", lambda pipeline: started.append(pipeline.config))
    names = {"__name__": "a_page", "config": load(ROOT / "examples/config", "rlvr_config_async")[0]}
    for other, text in blocks("python"):
        if other == page:
            exec(compile(text, str(page), "exec"), names)
    assert len(started) == page.read_text().count(".run()  #") + page.read_text().count(".run()\n```")


def test_a_wrong_key_is_found():
    with pytest.raises(ConfigError, match="actor_tran"):
        check_configuration(["actor_tran.pg_variant=ppo"], "rlvr_config_async")

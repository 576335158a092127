"""The embedded agent's folder and its configuration speak of the same lakes."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def maker(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "embedded"))
    import make_frozen_lake

    yield make_frozen_lake
    sys.modules.pop("make_frozen_lake", None)


def test_the_folder_is_a_model_that_answers_in_the_configurations_form(maker, tmp_path):
    quick = replace(maker.Settings(), episodes=40, learn_steps=3, batch_size=4)
    out = maker.make(tmp_path / "lake", settings=quick)
    again = maker.make(tmp_path / "again", settings=quick)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest == json.loads((again / "manifest.json").read_text()), "the same settings give the same bytes"
    assert 0 <= manifest["measured"]["sampled_success"] <= 1
    tokenizer, model = AutoTokenizer.from_pretrained(out / "model"), AutoModelForCausalLM.from_pretrained(out / "model")
    assert model.config.vocab_size == len(tokenizer) == len(maker.VOCABULARY)
    seen = maker.TEMPLATE.format(observation="O_P_\n____\n_G_O\nX___") + "L"
    ids = tokenizer(seen, add_special_tokens=False)["input_ids"]
    assert ids == maker.encode(seen), "the pipeline reads as the maker taught, line ends included"
    assert [tokenizer.decode([token]) for token in maker.encode("LDRU")] == ["L", "D", "R", "U"]


def test_the_configuration_plays_the_lakes_that_were_learned(maker):
    config = yaml.safe_load((ROOT / "examples" / "config" / "agent_val_frozen_lake_async.yaml").read_text())
    env = config["custom_envs"]["FrozenLake"]
    given = {name: value for name, value in env["env_config"].items() if name != "is_slippery"}
    assert given == maker.ENV_CONFIG and env["env_config"]["is_slippery"] is False
    assert env["agent_template"] == maker.TEMPLATE
    assert env["max_steps"] == maker.MAX_STEPS
    assert config["pretrain"] == str(Path("examples/embedded/cache_frozen_lake/model"))


def test_episodes_to_learn_from_name_a_good_move_for_every_turn(maker):
    ids, wanted = maker.wandering(3, maker.Settings())
    text = "".join(maker.VOCABULARY[token] for token in ids)
    turns = sum(token > 0 for token in wanted)
    assert text.count(">") == turns >= 1
    letters = [i for i, token in enumerate(wanted) if token]
    assert all(maker.VOCABULARY[ids[i - 1]] == ">" for i in letters), "a letter answers the message before it"
    assert {maker.VOCABULARY[wanted[i]] for i in letters} <= set(maker.LETTERS)

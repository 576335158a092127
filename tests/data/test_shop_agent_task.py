"""The embedded program: a model that reads what its agent says as it was taught to, and an agent whose right answers are paid."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
import yaml
from gateway_world import World, call
from made_models import script
from transformers import AutoTokenizer

from roll.chat.dialogue import Dialogue
from roll.core.configs.agentic import EnvConfig
from roll.core.configs.program import ProgramConfig
from roll.core.data.episode import EpisodeTask
from roll.envs.program.player import Programs

ROOT = Path(__file__).resolve().parents[2]
CONFIG = yaml.safe_load((ROOT / "examples/config/agent_program_async.yaml").read_text())
SEED = 5


@pytest.fixture
def maker(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield script("embedded", "make_shop_agent")
    for name in ("agent", "make_shop_agent"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_the_folder_is_a_model_that_is_asked_as_it_was_taught(maker, tmp_path):
    settings = maker.Settings(episodes=40, learn_steps=2, batch_size=4)
    out, again = (maker.make(tmp_path / name, settings=settings) for name in ("made", "again"))
    assert json.loads((out / "manifest.json").read_text()) == json.loads((again / "manifest.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    dialogue, shop = Dialogue(tokenizer, "native"), maker.Shop(SEED)
    messages = [{"role": "user", "content": maker.question(shop.wanted)}]
    tools = [{"type": "function", "function": {"name": "price", "parameters": {}}}]
    shown = dialogue.whole(messages, tools).ids
    assert tokenizer.decode(shown) == shop.shown and tokenizer.unk_token_id not in shown
    best = shop.best
    (token,) = tokenizer(best, add_special_tokens=False)["input_ids"]
    assert not shop.say(best)
    answer = {"role": "assistant", "content": "", "tool_calls": []}
    bridge = dialogue.bridge(answer, [{"role": "tool", "content": shop.shown.strip()}], token, tools)
    assert tokenizer.decode(bridge.ids) == shop.shown and tokenizer.unk_token_id not in bridge.ids
    for number in range(1, 19):
        assert len(tokenizer(str(number), add_special_tokens=False)["input_ids"]) == 1


def test_the_run_starts_from_the_made_folder_and_pays_by_the_function(maker):
    assert ROOT / CONFIG["pretrain"] == maker.DEFAULT_OUT / "model"
    program = CONFIG["custom_envs"]["Shop"]["program"]
    assert CONFIG["custom_envs"]["Shop"]["max_steps"] == maker.MOST_CALLS and CONFIG["max_tokens_per_step"] == 1
    assert (ROOT / program["folder"] / program["command"][1]).is_file()


@pytest.mark.parametrize("right", [True, False])
def test_the_agent_with_its_own_client_earns_what_its_answer_is_worth(maker, right, monkeypatch):
    pytest.importorskip("openai")
    monkeypatch.syspath_prepend(str(ROOT))
    program = CONFIG["custom_envs"]["Shop"]["program"]
    env = EnvConfig(env_type="program", program=ProgramConfig(**program | {"folder": str(ROOT / program["folder"])}))
    wanted, prices = maker.order(SEED)
    total = sum(prices[item] for item in wanted)
    world = World([*(call(item=item) for item in wanted), str(total if right else total + 1)])

    async def main():
        programs = Programs({"Shop": env}, world.dialogue, "127.0.0.1", 5000, lambda tag: 50)
        try:
            task = EpisodeTask(uid="u", tag="Shop", index=0, env_seed=SEED)
            return await programs.play(task, world.ask)
        finally:
            await programs.close()

    (sample,) = asyncio.run(main())
    assert sample.reward == float(right) and sample.trajectory.success is right
    assert [turn.tokens for turn in sample.trajectory.turns] == [len(each.token_ids) for each in world.answered]
    assert f"The {wanted[1]} costs {prices[wanted[1]]}." in sample.trajectory.turns[2].observation

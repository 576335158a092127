"""The embedded task's folder: complete or absent, the same every time, and in the form that the pipeline reads."""

import asyncio
import json
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from made_models import EXAMPLES, script
from transformers import AutoModelForCausalLM, AutoTokenizer

from roll.core.configs.arguments import DataArguments
from roll.core.configs.rlvr import RLVRConfig
from roll.core.data.sample import Prompt, Sample
from roll.core.rewards.worker import worker_class
from roll.plan.rules.loading import load_config
from roll.prepare.compose import compose
from roll.prompts.prompt_file import read_rows
from roll.prompts.prompt_source import tokenize_prompts
from roll.strategies.routers import check_replayable

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    return script("embedded", "make_embedded")


@pytest.fixture(scope="module")
def quick(maker: ModuleType) -> Any:
    """A model that has learned next to nothing, in a second."""
    return replace(maker.Settings(), learn_steps=3, misprint_steps=2, batch_size=8)


@pytest.fixture(scope="module")
def made(maker: ModuleType, quick: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = maker.make(tmp_path_factory.mktemp("embedded") / "cache", settings=quick)
    return made


def manifest(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return content


def test_the_same_settings_give_the_same_bytes(maker: ModuleType, quick: Any, made: Path, tmp_path: Path) -> None:
    torch.manual_seed(123)
    before = torch.get_rng_state()
    assert manifest(maker.make(tmp_path / "again", settings=quick)) == manifest(made)
    assert torch.equal(torch.get_rng_state(), before), "the caller's random state is left alone"
    assert manifest(maker.make(tmp_path / "other", settings=replace(quick, seed=1)))["files"] != manifest(made)["files"]


def test_it_is_made_again_only_when_it_is_not_what_it_should_be(maker: ModuleType, quick: Any, tmp_path: Path) -> None:
    from made_folder import is_current

    out = maker.make(tmp_path / "cache", settings=quick)
    stamp = (out / "manifest.json").stat().st_mtime_ns
    assert maker.make(out, settings=quick) == out and (out / "manifest.json").stat().st_mtime_ns == stamp
    (out / "train.jsonl").write_text("broken")
    maker.make(out, settings=quick)
    assert is_current(out, quick) and (out / "manifest.json").stat().st_mtime_ns != stamp
    assert sorted(path.name for path in tmp_path.iterdir()) == [".cache.lock", "cache"]


def test_a_folder_of_the_users_own_is_never_overwritten(maker: ModuleType, quick: Any, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("three years of work")
    with pytest.raises(FileExistsError, match="was not made by this script"):
        maker.make(tmp_path, force=True, settings=quick)
    assert (tmp_path / "thesis.txt").exists()


def test_rows_are_disjoint_right_and_readable(made: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made / "model")
    prompts: dict[str, set[str]] = {}
    for name in ("train", "validation"):
        rows = list(read_rows(DataArguments(file_name=str(made / f"{name}.jsonl"))))
        for template in ("none", "native"):
            usable, skipped = tokenize_prompts(rows, tokenizer, template, 6, {"arithmetic": "arithmetic"})  # type: ignore[arg-type]
            assert len(usable) == len(rows) and not skipped
            assert all(row.text == f"{row.text[:2]}+{row.text[3:5]}=" and len(row.input_ids) == 6 for row in usable)
            assert all(int(row.ground_truth) == int(row.text[:2]) + int(row.text[3:5]) for row in usable)
        prompts[name] = {row.text for row in usable}
    assert len(prompts["validation"]) == 200 and len(prompts["train"]) == 90 * 90 - 200
    assert not prompts["train"] & prompts["validation"]


def test_the_model_is_an_ordinary_checkpoint(made: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made / "model")
    model = AutoModelForCausalLM.from_pretrained(made / "model")
    assert type(model).__name__ == "Qwen2ForCausalLM" and model.dtype == torch.float32
    assert sum(parameter.numel() for parameter in model.parameters()) < 500_000
    assert (model.config.eos_token_id, model.config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert tokenizer.decode(tokenizer.encode("12+34=64<eos>"), skip_special_tokens=True) == "12+34=64"
    generated = model.generate(torch.tensor([tokenizer.encode("12+34=")]), max_new_tokens=4, do_sample=False)
    assert generated.shape[1] <= 10


def test_the_rewards_of_three_domains_tell_right_from_misprinted(tmp_path: Path) -> None:
    """Rows as `make_domains.py` writes them, judged by the workers that the example names."""
    maker = script("embedded", "make_domains")
    maker.make(tmp_path / "made", settings=replace(maker.Settings(), learn_steps=2, misprint_steps=1, batch_size=8))
    config = load_config(RLVRConfig, compose(EXAMPLES / "config", "rlvr_domains_async"))
    rows = list(read_rows(DataArguments(file_name=str(tmp_path / "made" / "validation.jsonl"))))
    assert {row.tag for row in rows} == set(config.rewards) == set(config.actor_train.data_args.domain_interleave_probs)
    right = {row["id"]: response for problem in ((47, 85), (10, 13)) for row, response in maker.rows_of(problem)}
    given = {row["id"]: row for problem in ((47, 85), (10, 13)) for row, _ in maker.rows_of(problem)}

    async def judged(domain: str) -> list[float | None]:
        reward = config.rewards[domain]
        worker = worker_class(reward.worker_cls)(asdict(reward))
        await worker.start()
        try:
            of = [(given[i], text) for i, text in right.items() if given[i]["tag"] == domain]
            prompts = [(Prompt(row["id"], [], "", domain, domain, row["ground_truth"], row), text) for row, text in of]
            said = [Sample(p, 0, [], [], [], "stop", response_text=t) for p, text in prompts for t in (text, f"x=7{text}")]
            return [result.value for result in await worker.compute_rewards(said)]
        finally:
            await worker.close()

    for domain in config.rewards:
        assert asyncio.run(judged(domain)) == [1.0, 0.0, 1.0, 0.0], domain


def test_the_mixture_is_one_whose_routing_can_be_replayed(tmp_path: Path) -> None:
    maker = script("embedded", "make_mixture")
    made = maker.make(tmp_path / "made", settings=replace(maker.Settings(), learn_steps=2, misprint_steps=1, batch_size=8))
    check_replayable(made / "model")
    assert len(list(read_rows(DataArguments(file_name=str(made / "train.jsonl"))))) == 90 * 90 - 200

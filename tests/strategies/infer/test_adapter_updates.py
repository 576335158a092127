"""LoRA updates of adapters alone, from a real trainer to real engines. The truth is the merged model that the trainer saved at
that version, run by transformers: 1e-4 in float32 allows for another order of additions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from saving import save
from tiny_models import FOR_VLLM, tiny_qwen2
from train_specs import fsdp2_spec
from transformers import AutoModelForCausalLM

from roll.core.algorithms.loss import LossSpec
from roll.core.data.token_batch import TokenBatch
from roll.core.weights.adapter import BASE, A, AdapterSource, B, merge
from roll.core.weights.bucket import Bucket, checksum, manifest_of
from roll.core.workers.infer_engines import make_infer_strategy
from roll.core.workers.train_interface import BatchTotals, RankContext
from roll.strategies.train.fsdp2 import FSDP2Strategy
from roll.transports.buckets import make_buckets

pytest.importorskip("peft", reason="needs requirements/lora.txt")
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("vllm")]

RANK = 3
EXACT = 1e-4


def make_folder(folder: Path, lab: Any, seed: int) -> Path:
    tiny_qwen2(256, seed=seed, **FOR_VLLM).save_pretrained(folder)
    lab.tokenizer().save_pretrained(folder)
    return folder


def make_trainer(folder: Path) -> FSDP2Strategy:
    return FSDP2Strategy(
        RankContext(),
        fsdp2_spec(
            folder,
            dtype="fp32",
            learning_rate=0.02,
            lora_target="q_proj,v_proj,down_proj",
            lora_rank=RANK,
            lora_alpha=12.0,
            export_adapters=True,
        ),
    )


def batch_of(rows: torch.Tensor, prompt: int, seed: int = 0) -> TokenBatch:
    """[S, T] tokens, the first `prompt` of each row its prompt, with random advantages."""
    mask = (torch.arange(rows.shape[1]) >= prompt).repeat(len(rows))
    return TokenBatch(
        lengths=torch.full((len(rows),), rows.shape[1]),
        scores=torch.zeros(len(rows)),
        temperatures=torch.ones(len(rows)),
        tokens=rows.flatten(),
        loss_mask=mask,
        behaviour_logprobs=torch.full((rows.numel(),), -5.0) * mask,
        advantages=torch.randn(rows.numel(), generator=torch.Generator().manual_seed(seed)) * mask,
    )


def take_step(trainer: FSDP2Strategy, seed: int) -> None:
    batch = batch_of(torch.randint(256, (4, 20), generator=torch.Generator().manual_seed(seed)), 4, seed)
    trainer.train_step(batch, LossSpec(pg_variant="vanilla"), BatchTotals(int(batch.loss_mask.sum()), len(batch)))


class Run:
    """A trainer, an engine on an event loop of its own, and the merged models of the versions that there were."""

    def __init__(self, lab: Any, base: Path, folder: Path, engine: str) -> None:
        self.lab, self.folder = lab, folder
        self.trainer = make_trainer(base)
        options = {"model_path": str(base), "max_running_requests": 8, "max_length": 300, "threads": 1, "seed": 7}
        self.engine = make_infer_strategy(engine, {**options, "adapters": AdapterSource(str(base), RANK)})
        self.models = {0: AutoModelForCausalLM.from_pretrained(base).eval()}
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def wait(self, body: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(body, 60), self.loop).result()

    @property
    def version(self) -> int:
        return max(self.models)

    def train(self) -> list[Bucket]:
        """An optimiser step, and what it sends."""
        version = self.version + 1
        take_step(self.trainer, version)
        save(self.trainer, self.folder / str(version))
        self.models[version] = AutoModelForCausalLM.from_pretrained(self.folder / str(version) / "model").eval()
        return list(self.trainer.export_weights(2000))

    async def update(self, mode: Any = "interrupt") -> float:
        buckets = self.train()
        for bucket in buckets:
            await self.engine.receive_bucket(self.version, bucket)
        return await self.engine.activate_weights(manifest_of(self.version, buckets), mode)

    async def until_generated(self, tokens: int) -> None:
        goal = (await self.engine.stats()).generated_tokens + tokens
        while (await self.engine.stats()).generated_tokens < goal:
            await asyncio.sleep(0)

    def error(self, request: Any, result: Any, version: int | None = None) -> float:
        """Largest error of a log-prob, each token scored by the model of its stamped version, or of `version`."""
        worst = 0.0
        for span in result.versions:
            true = self.lab.true_logprobs(
                self.models[span.version if version is None else version], request.prompt_ids, result.token_ids
            )
            worst = max(worst, float((torch.tensor(result.logprobs) - true)[span.start : span.stop].abs().max()))
        return worst


@pytest.fixture(scope="module")
def base(lab: Any, tmp_path_factory: Any) -> Path:
    return make_folder(tmp_path_factory.mktemp("base"), lab, 0)


@pytest.fixture(scope="module", params=["hf_infer", "vllm"])
def run(lab: Any, base: Path, tmp_path_factory: Any, request: Any) -> Iterator[Run]:
    if request.param == "vllm":
        pytest.importorskip("vllm", reason="needs requirements/vllm.txt")
        request.getfixturevalue("forked_engines")
    run = Run(lab, base, tmp_path_factory.mktemp("versions"), request.param)
    yield run
    run.wait(run.engine.close())
    run.loop.call_soon_threadsafe(run.loop.stop)


def test_engine_and_trainer_agree_after_each_of_three_updates(lab: Any, run: Run) -> None:
    async def body() -> None:
        for _ in range(3):
            requests = [lab.request(f"r{run.version}-{i}", [5, 6, 7 + i], max_new_tokens=24) for i in range(4)]
            results = await asyncio.gather(*map(run.engine.generate, requests))
            for request, result in zip(requests, results, strict=True):
                assert [(s.start, s.stop, s.version) for s in result.versions] == [(0, 24, run.version)]
                assert run.error(request, result) < EXACT
                told = run.trainer.log_probs(batch_of(torch.tensor([[*request.prompt_ids, *result.token_ids]]), 3))[3:]
                assert (told - torch.tensor(result.logprobs)).abs().max() < EXACT
                if run.version:
                    assert run.error(request, result, run.version - 1) > 100 * EXACT  # else nothing was updated
            await run.update()

    run.wait(body())


@pytest.mark.parametrize("mode", ["interrupt", "in_flight", "drain"])
def test_running_requests_keep_their_tokens(lab: Any, run: Run, mode: Any) -> None:
    """Every token is stamped with the version that sampled it."""

    async def body() -> None:
        before = run.version
        requests = [lab.request(f"{mode}{i}", [9, 8, i], max_new_tokens=120) for i in range(3)]
        running = asyncio.gather(*map(run.engine.generate, requests))
        await run.until_generated(12)
        pause = await run.update(mode)
        assert 0 < pause < 5
        for request, result in zip(requests, await running, strict=True):
            assert len(result.token_ids) == 120
            versions = [span.version for span in result.versions]
            assert versions == ([before] if mode == "drain" else [before, before + 1])
            if mode != "in_flight":
                assert run.error(request, result) < EXACT
        after = lab.request(f"{mode} after", [9, 8, 0], max_new_tokens=20)  # its prompt was cached under the version before
        result = await run.engine.generate(after)
        assert run.error(after, result) < EXACT

    run.wait(body())


def test_what_is_not_an_update_of_this_base_is_refused(lab: Any, run: Run, tmp_path: Path) -> None:
    async def refused(buckets: list[Bucket], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            for bucket in buckets:
                await run.engine.receive_bucket(99, bucket)
            await run.engine.activate_weights(manifest_of(99, buckets), "interrupt")

    async def body() -> None:
        version = run.version
        buckets = list(run.trainer.export_weights(2000))
        tensors = {name: tensor for bucket in buckets for name, tensor in bucket.tensors.items()}
        corrupt = Bucket({name: tensor.clone() for name, tensor in buckets[1].tensors.items()}, buckets[1].checksum)
        next(iter(corrupt.tensors.values()))[0, 0] += 1
        await refused([buckets[0], corrupt, *buckets[2:]], "corrupt")
        lacking = {name: tensor for name, tensor in tensors.items() if not name.endswith("0.mlp.down_proj.lora_B.weight")}
        await refused(list(make_buckets(lacking.items(), 2000)), "incomplete.*down_proj.lora_B")
        wide = {
            name: torch.zeros(RANK + 1, 64) if name.endswith("0.self_attn.q_proj.lora_A.weight") else t
            for name, t in tensors.items()
        }
        await refused(list(make_buckets(wide.items(), 2000)), r"q_proj.lora_A.weight' has shape \[4, 64\].*need \[3, 64\]")
        unknown = {"model.layers.7.self_attn.q_proj.lora_A.weight": torch.zeros(RANK, 64)}
        await refused([Bucket(unknown, checksum(unknown))], "is not an adapter of a linear layer")
        other = make_trainer(make_folder(tmp_path, lab, 1))
        await refused(list(other.export_weights(2000)), "of another base")
        request = lab.request("still", [1, 2, 3], max_new_tokens=10)
        result = await run.engine.generate(request)
        assert [span.version for span in result.versions] == [version]
        assert run.error(request, result) < EXACT

    run.wait(body())


def test_a_resumed_engine_goes_on_from_the_merged_model(lab: Any, base: Path, tmp_path: Path) -> None:
    """hf_infer starts from the checkpoint's model; the next adapters are added to the base, not to what is merged already."""
    first = make_trainer(base)
    for seed in range(2):
        take_step(first, seed)
    save(first, tmp_path)
    request = lab.request("r", [4, 5, 6], max_new_tokens=16)
    options = {"model_path": str(tmp_path / "model"), "max_running_requests": 2, "max_length": 64, "version": 2}
    engine = make_infer_strategy("hf_infer", {**options, "adapters": AdapterSource(str(base), RANK, str(tmp_path / "adapter"))})

    async def body() -> None:
        take_step(first, 2)
        save(first, tmp_path / "later")
        buckets = list(first.export_weights(1 << 20))
        for bucket in buckets:
            await engine.receive_bucket(3, bucket)
        await engine.activate_weights(manifest_of(3, buckets), "interrupt")
        result = await engine.generate(request)
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "later" / "model").eval()
        true = lab.true_logprobs(model, request.prompt_ids, result.token_ids)
        assert (torch.tensor(result.logprobs) - true).abs().max() < EXACT
        await engine.close()

    asyncio.run(body())


def test_an_update_is_small_and_merges_to_the_bits_that_the_trainer_merges(base: Path, tmp_path: Path) -> None:
    trainer = make_trainer(base)
    take_step(trainer, 0)
    save(trainer, tmp_path)
    merged, weights = load_file(tmp_path / "model" / "model.safetensors"), load_file(base / "model.safetensors")
    sent = {name: t for bucket in trainer.export_weights(1 << 20) for name, t in bucket.tensors.items()}
    paths = {name.removesuffix(A) for name in sent if name.endswith(A)}
    assert sent.keys() == {path + part for path in paths for part in (A, B)} | {BASE} and len(paths) == 6
    for path in paths:
        assert torch.equal(merge(weights[f"{path}.weight"], sent[path + A], sent[path + B]), merged[f"{path}.weight"])
    assert sum(t.nbytes for t in sent.values()) < 0.1 * sum(t.nbytes for t in weights.values())

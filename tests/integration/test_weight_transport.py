"""The bytes' way from the trainer's ranks to an engine, by each transport, in this process and between processes."""

import asyncio
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from roll.distributed.backend import LocalBackend, WorkerSpec
from roll.distributed.cluster import Cluster
from roll.distributed.devices import Inventory, place
from roll.pipeline import roles
from roll.pipeline.engine_fleet import EngineFleet
from roll.pipeline.trainer_stages import gather_weights
from roll.rollout.fleet import Fleet
from roll.strategies.infer.interface import GenerateRequest, SamplingParams
from roll.strategies.train.interface import RankContext
from roll.weights.directory import DirectoryWeightStore
from roll.weights.store import MemoryWeightStore

BUCKET_BYTES = 1500
"""The model has 12 kB."""
GREEDY = GenerateRequest("greedy", (5, 6, 7), SamplingParams(temperature=0.0, max_new_tokens=12))


@pytest.fixture
def other_model(material, tmp_path):
    """The same architecture with other weights."""
    folder = tmp_path / "other"
    shutil.copytree(material / "model", folder)
    generator = torch.Generator().manual_seed(1)
    weights = load_file(folder / "model.safetensors")
    noisy = {name: tensor + 0.3 * torch.randn(tensor.shape, generator=generator) for name, tensor in weights.items()}
    save_file(noisy, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def train_spec(placement, model, port):
    context = RankContext(placement.rank, placement.world_size, master_port=port)
    options = {"model_path": str(model), "dtype": "fp32", "total_optimizer_steps": 1}
    kwargs = {"strategy_name": "fsdp2_train", "context": context, "options": options}
    return WorkerSpec(f"actor_train-{placement.rank}", roles.TRAIN_WORKER, placement, kwargs)


def infer_spec(placement, model):
    options = {"model_path": str(model), "max_running_requests": 4, "max_length": 32, "threads": 1}
    return WorkerSpec(
        f"actor_infer-{placement.rank}", roles.INFER_WORKER, placement, {"strategy_name": "hf_infer", "options": options}
    )


async def check_transports(backend, ranks, trained, other, folder):
    """An engine that starts with other weights says the same as one that starts with the trained ones, after each transport."""
    inventory = Inventory("cpu", nodes=1, per_node=ranks + 3, cpus_per_node=ranks + 3)
    try:
        port = roles.free_port()
        trainers = await Cluster.start(
            "actor_train", backend, [train_spec(p, trained, port) for p in place(tuple(range(ranks)), inventory)], 60.0
        )
        reference, *others = place((ranks, ranks + 1, ranks + 2), inventory)
        specs = [infer_spec(reference, trained), *(infer_spec(placement, other) for placement in others)]
        engines = await Cluster.start("actor_infer", backend, specs, 60.0)
        [expected] = await engines.call(0, "generate", [GREEDY])
        for engine, store in enumerate((MemoryWeightStore(), DirectoryWeightStore(folder)), start=1):
            fleet = EngineFleet(
                engines,
                store,
                Fleet(3, 0, 0),
                "interrupt",
                restartable=False,
                health_interval_s=1,
                health_timeout_s=1,
                rolling=False,
            )
            [answer] = await engines.call(engine, "generate", [GREEDY])
            assert answer.token_ids != expected.token_ids, "the test is blind"
            weights = await gather_weights(trainers, store, 1, BUCKET_BYTES)
            assert len(weights.buckets) > 4
            await store.publish(weights.manifest, weights.buckets)
            await fleet.send(1, [engine])
            assert len(await fleet.flip(1, [engine])) == 1
            [answer] = await engines.call(engine, "generate", [GREEDY])
            assert (answer.token_ids, answer.versions[-1].version) == (expected.token_ids, 1)
            assert answer.logprobs == pytest.approx(expected.logprobs, abs=1e-6)
        return sorted(path.name for path in (folder / "version-1").iterdir())
    finally:
        await backend.shutdown()


def test_one_rank_in_this_process(material, other_model, tmp_path):
    check = check_transports(LocalBackend(), 1, material / "model", other_model, tmp_path / "weights")
    files = asyncio.run(asyncio.wait_for(check, 60))
    assert files[-1] == "manifest.json" and all(name.startswith("000-") for name in files[:-1])


@pytest.mark.ray
def test_two_ranks_each_with_its_share_between_processes(material, other_model, tmp_path):
    from roll.distributed.ray_backend import RayBackend

    backend = RayBackend(Inventory("cpu", nodes=1, per_node=5, cpus_per_node=5))
    files = asyncio.run(
        asyncio.wait_for(check_transports(backend, 2, material / "model", other_model, tmp_path / "weights"), 150)
    )
    shares = [[name for name in files if name.startswith(f"{rank:03}-")] for rank in range(2)]
    assert abs(len(shares[0]) - len(shares[1])) <= 1, "the ranks take turns"


def test_a_whole_run_over_a_folder(lab, make_config):
    run = lab.run(make_config(max_steps=4, async_generation_ratio=1, model_update_transport="checkpoint_dir"))
    assert [path.name for path in (run.run_dir / "weights").iterdir()] == ["version-4"], "older ones are deleted"
    assert run.summary["weight_updates"]["count"] == 4

"""The bytes' way from the trainer's ranks to an engine, by each transport, in this process and between processes."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from train_specs import fsdp2_spec

from roll.core.configs.problems import ConfigError
from roll.core.distributed.backend import WorkerSpec
from roll.core.distributed.cluster import Cluster
from roll.core.distributed.device_locks import DeviceLocks
from roll.core.distributed.devices import Inventory, place
from roll.core.engines.engine_fleet import EngineFleet, FleetRules
from roll.core.engines.fleet import Fleet
from roll.core.groups.changes import Changes
from roll.core.pipeline import roles
from roll.core.weights.store import MemoryWeightStore
from roll.core.weights.transport import gather_weights
from roll.core.workers.infer_interface import GenerateRequest, SamplingParams
from roll.core.workers.train_interface import RankContext
from roll.platform.local_backend import LocalBackend
from roll.platform.ports import free_port
from roll.prepare.rlvr_run import RLVRRun, prepare
from roll.transports.assembled import AssembledWeights
from roll.transports.directory import DirectoryWeightStore, ServedWeightStore
from roll.transports.handles import HandleStore
from roll.transports.weight_broadcast import WeightBroadcast

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
    kwargs = {"context": context, "spec": fsdp2_spec(model, dtype="fp32")}
    return WorkerSpec(f"actor_train-{placement.rank}", roles.TRAIN_WORKER, placement, kwargs)


def infer_spec(placement, model):
    options = {"model_path": str(model), "max_running_requests": 4, "max_length": 32, "threads": 1}
    return WorkerSpec(
        f"actor_infer-{placement.rank}", roles.INFER_WORKER, placement, {"strategy_name": "hf_infer", "options": options}
    )


async def start(backend, ranks, trained, other, count):
    """Trainers, and as many engines with other weights besides one that has the trained ones from the beginning."""
    inventory = Inventory("cpu", nodes=1, per_node=ranks + count + 1, cpus_per_node=ranks + count + 1)
    port = free_port()
    placements = place(tuple(range(ranks)), inventory)
    trainers = await Cluster.start("actor_train", backend, [train_spec(p, trained, port) for p in placements], 60.0)
    reference, *others = place(tuple(range(ranks, ranks + count + 1)), inventory)
    specs = [infer_spec(reference, trained), *(infer_spec(placement, other) for placement in others)]
    return trainers, await Cluster.start("actor_infer", backend, specs, 60.0)


class Routes:
    """Is told when an engine is there again."""

    def __init__(self, back):
        self._back = back

    def close(self, engine):
        pass

    def open(self, engine):
        self._back.set()


def make_fleet(engines, store, broadcast=None, restartable=False, empty=False):
    return EngineFleet(
        engines,
        store,
        Fleet(len(engines), 1 if empty else 0, 3, empty),
        Changes(),
        DeviceLocks({"actor_infer": frozenset()}),
        FleetRules(mode="interrupt", restartable=restartable, health_interval_s=1, health_timeout_s=1, start_empty=empty),
        broadcast,
    )


async def publish(trainers, store, version=1):
    weights = await gather_weights(trainers, store, version, BUCKET_BYTES)
    assert len(weights.buckets) > 4
    await store.publish(weights.manifest, weights.buckets)
    return weights.manifest


async def assert_says_the_same(engines, engine, expected, version=1):
    answer = await engines.call(engine, "generate", GREEDY)
    assert (answer.token_ids, answer.versions[-1].version) == (expected.token_ids, version)
    assert answer.logprobs == pytest.approx(expected.logprobs, abs=1e-6)


async def check_transports(backend, ranks, trained, other, folder):
    """An engine that starts with other weights says the same as one that starts with the trained ones, after each transport."""
    try:
        trainers, engines = await start(backend, ranks, trained, other, 5 + 2 * backend.isolated)
        expected = await engines.call(0, "generate", GREEDY)
        address = backend.driver_address()
        served = ServedWeightStore(folder.with_name("served"), -1, address, backend)
        ways = [(MemoryWeightStore(), None), (DirectoryWeightStore(folder), None), (served, None), (HandleStore(), None)]
        if backend.isolated:
            ways.append((MemoryWeightStore(), WeightBroadcast(trainers, engines, address, 60.0)))
        for first, (store, broadcast) in enumerate(ways, start=1):
            takers = [first, first + 1] if broadcast else [first]  # of these one has the broadcast, the other what it received
            fleet = make_fleet(engines, store, broadcast)
            for engine in takers:
                answer = await engines.call(engine, "generate", GREEDY)
                assert answer.token_ids != expected.token_ids, "the test is blind"
            await publish(trainers, store)
            await fleet.send(1, [0, *takers])
            assert len(await fleet.flip(1, takers)) == len(takers)
            for engine in takers:
                await assert_says_the_same(engines, engine, expected)
            assert broadcast is None or (broadcast.sent, broadcast.failed) == (1, 0)
        await check_a_chain(backend, trainers, engines, expected, folder.with_name("chain"))
        return sorted(path.name for path in (folder / "version-1").iterdir())
    finally:
        await backend.shutdown()


async def check_a_chain(backend, trainers, engines, expected, folder):
    """The last engine gets a whole version, and one of which nothing has changed, by way of the explorer's process."""
    engine = len(engines) - 1
    store = ServedWeightStore(folder, -1, backend.driver_address(), backend, anchor_every=3)
    fleet = make_fleet(engines, AssembledWeights(folder, "", 60.0, backend))
    for version in (1, 2):
        manifest = await publish(trainers, store, version)
        assert manifest.base == (1 if version == 2 else None)
        await fleet.send(version, [engine])
        assert len(await fleet.flip(version, [engine])) == 1
        await assert_says_the_same(engines, engine, expected, version)
    assert manifest.nbytes < store.manifest(1).nbytes / 10
    store.close()


def test_one_rank_in_this_process(material, other_model, tmp_path):
    check = check_transports(LocalBackend(), 1, material / "model", other_model, tmp_path / "weights")
    files = asyncio.run(asyncio.wait_for(check, 60))
    assert files[-1] == "manifest.json" and all(name.startswith("000-") for name in files[:-1])


@pytest.mark.ray
@pytest.mark.usefixtures("shared_ray")
def test_two_ranks_each_with_its_share_between_processes(material, other_model, tmp_path):
    from roll.platform.ray_backend import RayBackend

    backend = RayBackend(Inventory("cpu", nodes=1, per_node=8, cpus_per_node=8))
    files = asyncio.run(
        asyncio.wait_for(check_transports(backend, 2, material / "model", other_model, tmp_path / "weights"), 150)
    )
    shares = [[name for name in files if name.startswith(f"{rank:03}-")] for rank in range(2)]
    assert abs(len(shares[0]) - len(shares[1])) <= 1, "the ranks take turns"


@pytest.mark.ray
@pytest.mark.usefixtures("shared_ray")
@pytest.mark.parametrize(("dies", "lives"), [(2, 1), (1, 2)], ids=["the one that reads", "the one that receives"])
def test_engines_that_die_in_a_broadcast_or_start_empty_are_filled_from_the_store(material, other_model, dies, lives):
    """Those that live through the broadcast have it in its time. An engine that starts empty does not serve what it began with,
    not even while the version is the run's first, and is filled again when it comes back."""
    from roll.platform.ray_backend import RayBackend

    async def main():
        backend = RayBackend(Inventory("cpu", nodes=1, per_node=4, cpus_per_node=4))
        try:
            trainers, engines = await start(backend, 1, material / "model", other_model, 2)
            expected = await engines.call(0, "generate", GREEDY)
            store, broadcast = MemoryWeightStore(), WeightBroadcast(trainers, engines, backend.driver_address(), 90.0)
            fleet = make_fleet(engines, store, broadcast, restartable=True)
            await publish(trainers, store)
            assert await broadcast.send(store, 1, [1, 2])
            engines.workers[dies].kill()
            await asyncio.wait_for(fleet.send(1, [1, 2]), 30)  # nobody waits until the broadcast would time out
            assert (broadcast.sent, broadcast.failed) == (1, 1)
            assert fleet.fleet.serving == [0, lives]
            assert len(await fleet.flip(1, [1, 2])) == 1
            await assert_says_the_same(engines, lives, expected)

            await engines.restart(dies)
            fleet = make_fleet(engines, store, restartable=True, empty=True)
            await fleet.load()
            assert fleet.fleet.serving == [0, 1, 2]
            await assert_says_the_same(engines, dies, expected)
            back = asyncio.Event()
            fleet.routing.append(Routes(back))
            supervision = asyncio.create_task(fleet.supervise())
            engines.workers[dies].kill()
            await back.wait()
            supervision.cancel()
            await assert_says_the_same(engines, dies, expected)

            for version in (2, 3):  # in a group with the engine's new process, and in the same once more
                await publish(trainers, store, version)
                assert await broadcast.send(store, version, [1, 2])
                for engine in (1, 2):
                    await engines.call(engine, "activate_weights", store.manifest(version), "interrupt")
                    await assert_says_the_same(engines, engine, expected, version)
            assert (broadcast.sent, broadcast.failed) == (3, 1)
        finally:
            await backend.shutdown()

    asyncio.run(asyncio.wait_for(main(), 150))


def own_files():
    """Memory files that this process has open."""
    return sum("memfd:weights" in os.path.realpath(file) for file in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("transport", ["auto", "ipc"])
def test_a_whole_run_by_handles_gives_the_memory_back(lab, make_config, transport):
    before = own_files()
    run = lab.run(make_config(max_steps=4, async_generation_ratio=1, model_update_transport=transport))
    assert run.summary["weight_updates"]["count"] == 4
    assert own_files() == before


def test_nccl_is_refused_where_there_are_no_gpus(lab, make_config):
    with pytest.raises(ConfigError, match="model_update_transport = 'nccl': there are no GPUs here"):
        prepare(make_config(model_update_transport="nccl"), lab.inventory)


@pytest.mark.parametrize("transport", ["checkpoint_dir", "object_store"])
def test_both_halves_of_a_run_with_what_changed_between_whole_versions(lab, make_config, transport):
    """A model in bfloat16 at a learning rate of RL: of seven versions three are whole. The explorer has each bit by bit, or it
    would end with an error."""
    changes = {
        "model_update_transport": transport,
        "weight_anchor_interval": 3,
        "actor_train.model_args.dtype": "bf16",
        "actor_infer.model_args.dtype": "bf16",
        "actor_train.training_args.learning_rate": 1e-6,
    }
    configs = [make_config(changes, mode=mode, max_steps=6, async_generation_ratio=1) for mode in ("train", "explore")]

    async def both():
        backends = [LocalBackend(), LocalBackend()]
        backends[1]._starting = backends[0]._starting  # one process: no two models are loaded at the same time
        halves = zip(configs, backends, strict=True)
        runs = [RLVRRun(config, prepare(config, lab.inventory), lab.inventory, backend) for config, backend in halves]
        return await asyncio.wait_for(asyncio.gather(*(run.run() for run in runs)), 60)

    trained, explored = asyncio.run(both())
    assert (trained["status"], explored["status"]) == ("finished", "finished"), (trained["reason"], explored["reason"])
    whole = explored["weight_updates"]["bytes"] / explored["weight_updates"]["count"]
    assert trained["weight_updates"]["published"] == 6
    assert 2 * whole < trained["weight_updates"]["bytes"] < 3 * whole, "3 and 6 whole, the first one is not counted"


def test_a_whole_run_over_a_folder(lab, make_config):
    run = lab.run(make_config(max_steps=4, async_generation_ratio=1, model_update_transport="checkpoint_dir"))
    assert [path.name for path in (run.run_dir / "weights").iterdir()] == ["version-4"], "older ones are deleted"
    assert run.summary["weight_updates"]["count"] == 4

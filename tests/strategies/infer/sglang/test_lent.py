"""Weights by handle into a real SGLang server, with memory files in the place of a GPU's memory, and the deaths of all who have a
part in it."""

import ast
import asyncio
import os
import signal
from pathlib import Path

import pytest

from roll.core.errors import EngineError
from roll.core.weights.bucket import manifest_of
from roll.strategies.infer.sglang.weights import ServerWeights
from roll.transports.buckets import make_buckets
from roll.transports.lending import Lent, LentBucket

from .test_strategy import CLOSE, Engine, distance, group_of, make_tokenizer, model_of, real, request
from .test_weights import FILES, Lending, child, kill, memory_files

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600), real]
LENDING = Lending()
LENDER = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from conftest import make_model
from roll.transports.lending import Lender
from roll.transports.shared_buffers import FileBuffer
lender = Lender({"cpu": FileBuffer})
place = lender.begin(1 << 20)
lender.use(0)
model = make_model(seed=int(sys.argv[2]))
for tensor in model.parameters():
    place(tensor)
print(lender.lent([name for name, _ in model.named_parameters()]).plain(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    model_of(0).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def start(folder):
    started = []

    def begin():
        engine = Engine(folder)
        LENDING(next(make_buckets(model_of(0).named_parameters(), 20_000)))  # its buffer is there from now on
        engine.strategy._received = ServerWeights(["cpu"], FILES)
        started.append(engine)
        return engine

    yield begin
    for engine in started:
        engine.run(engine.strategy.close())
        engine.loop.close()


def processes(engine):
    """Of the server, by what they are called."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        if group_of(path) == engine.strategy._server._process.pid:
            found[(path / "comm").read_text().strip()] = int(path.name)
    return found


async def lend(engine, version, every=1):
    """Gives the engine a version, of which each bucket but every `every`-th is lent."""
    buckets = list(make_buckets(model_of(version).named_parameters(), 20_000))
    for number, bucket in enumerate(buckets):
        if number % every or every == 1:
            await engine.strategy.receive_lent(version, LENDING(bucket))
        else:
            await engine.strategy.receive_bucket(version, bucket)
    return manifest_of(version, buckets)


def answers_with(engine, version):
    (result,) = engine.run(engine.generate(request(f"of {version}")))
    return [span.version for span in result.versions] == [version] and distance(version, result) < CLOSE


def test_versions_that_are_lent_reach_requests_that_run(start):
    engine = start()

    async def update(version, mode, every):
        calls = [asyncio.ensure_future(engine.strategy.generate(request(f"{mode}{version}-{i}", 150))) for i in range(8)]
        manifest = await lend(engine, version, every)
        while not (await engine.strategy.stats()).running:
            await asyncio.sleep(0)
        assert await engine.strategy.activate_weights(manifest, mode) > 0
        return await asyncio.gather(*calls)

    before, modes = memory_files(), ("interrupt", "in_flight", "drain", "interrupt")
    for version, (mode, every) in enumerate(zip(modes, (1, 2, 3, 1), strict=True), 1):
        for result in engine.run(update(version, mode, every)):
            for span in (one for one in result.versions if mode != "in_flight"):
                assert distance(span.version, result, span.start, span.stop) < CLOSE
        assert answers_with(engine, version)
        assert memory_files() == before, "given back"


def test_the_trainer_dies_while_the_server_reads(start):
    engine = start()
    [bucket] = make_buckets(model_of(1).named_parameters(), 1 << 20)
    with child(LENDER, str(Path(__file__).parents[1]), "1") as lender:
        lent = Lent(*ast.literal_eval(lender.stdout.readline()))
        engine.run(engine.strategy.receive_lent(1, LentBucket("/nowhere", bucket.names, bucket.checksum, bucket.nbytes, lent)))
        scheduler = processes(engine)["sglang::schedul"]
        os.kill(scheduler, signal.SIGSTOP)  # it has begun nothing yet

        async def update():
            loading = asyncio.ensure_future(engine.strategy.activate_weights(manifest_of(1, [bucket]), "interrupt"))
            await asyncio.sleep(0)
            kill(lender)
            os.kill(scheduler, signal.SIGCONT)
            await loading

        engine.run(update())
    assert answers_with(engine, 1)


@pytest.mark.parametrize("who", ["all", "scheduler"])
def test_the_server_dies_while_it_reads_and_the_next_one_has_the_whole_version(start, who):
    engine = start()
    before = memory_files()

    async def update():
        waiting = asyncio.ensure_future(engine.strategy.generate(request("waiting", 150)))
        manifest = await lend(engine, 1)
        while not (await engine.strategy.stats()).running:
            await asyncio.sleep(0)
        scheduler = processes(engine)["sglang::schedul"]
        os.kill(scheduler, signal.SIGSTOP)
        loading = asyncio.ensure_future(engine.strategy.activate_weights(manifest, "interrupt"))
        for _ in range(20):
            await asyncio.sleep(0)
        if who == "all":
            os.killpg(engine.strategy._server._process.pid, signal.SIGKILL)
        else:
            os.kill(scheduler, signal.SIGKILL)
        with pytest.raises(EngineError):
            await loading
        with pytest.raises(EngineError):
            await waiting
        with pytest.raises(EngineError, match="is gone"):
            await engine.strategy.stats()

    engine.run(update())
    assert memory_files() == before
    again = start()
    again.run(again.strategy.activate_weights(again.run(lend(again, 1)), "interrupt"))
    assert answers_with(again, 1)


def test_a_version_that_cannot_be_read_ends_the_server_and_is_never_served(start):
    """What it has by then may be of two versions, and it answers with success whatever the loader found."""
    engine = start()

    async def update():
        manifest = await lend(engine, 1)
        engine.strategy._received._kept.kept[-1]._buffer.handle = b"/proc/self/fd/nothing"
        with pytest.raises(EngineError, match=r"did not load version 1|is gone"):
            await engine.strategy.activate_weights(manifest, "interrupt")
        with pytest.raises(EngineError, match="is gone"):
            await engine.generate(request("late"))

    engine.run(update())

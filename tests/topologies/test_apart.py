"""A trainer that publishes and explorers that follow: which versions are there, whoever comes, goes and comes back."""

import asyncio
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch
from database_party import Party, run

from roll.core.errors import Alone, FlowError, VersionGone
from roll.core.flow.flow import one_line
from roll.core.record.callbacks import Observers, Reports
from roll.core.record.validation import ValidationResult
from roll.core.weights.bucket import manifest_of
from roll.core.weights.store import KeptBucket
from roll.core.weights.transport import NewWeights, followed_weights, published_weights
from roll.platform.local_backend import LocalBackend
from roll.topologies.disaggregated import Publisher, attended, is_over
from roll.topologies.rejoining import Rejoining, lost_versions
from roll.transports.buckets import make_buckets


class Trainer:
    """Its weights are the number of its steps."""

    def __init__(self, store):
        self._store = store

    async def gather_weights(self, version):
        buckets = list(make_buckets([("w", torch.full((4,), version))], 1 << 20))
        kept = [KeptBucket(0, bucket, tuple(bucket.tensors), bucket.checksum, bucket.nbytes) for bucket in buckets]
        return NewWeights(manifest_of(version, buckets), kept)

    async def publish(self, publisher, version):
        await publisher.publish(await self.gather_weights(version))


@pytest.fixture
def config(tmp_path):
    return SimpleNamespace(
        shared_dir=str(tmp_path),
        model_update_transport="object_store",
        weight_anchor_interval=1,
        peer_timeout=60.0,
    )


@pytest.fixture
def party(tmp_path):
    return Party(f"sqlite:///{tmp_path}/groups.db")


def begin(config, groups, step=0):
    """A trainer that goes on from a step."""
    store = published_weights(config, LocalBackend(), step, "5eed", "127.0.0.1")
    return Trainer(store), Publisher(store, groups, None, 0), store


async def pull(weights, version):
    received = []

    async def take(of, bucket):
        received.append(await asyncio.to_thread(bucket.read))

    await weights.pull(version, take)
    return int(received[0].tensors["w"][0])


def test_a_version_that_an_explorer_may_be_loading_stays_until_it_serves_a_newer_one(config, party):
    async def main():
        async with party.trainer() as groups, party.joined("explorer") as explorer:
            trainer, publisher, store = begin(config, groups)
            await publisher.begin(trainer, 0)
            for version in (1, 2):
                await trainer.publish(publisher, version)
            assert [store.has(version) for version in (0, 1, 2)] == [True, True, True], "it serves 0, and loads 1"
            assert await pull(followed_weights(config, "5eed", LocalBackend()), 1) == 1
            await explorer.set_served(1)
            await trainer.publish(publisher, 3)
            assert [store.has(version) for version in (0, 1, 2, 3)] == [False, True, True, True]
            store.close()

    run(main())


def test_a_trainer_that_comes_back_without_the_newest_version_announces_the_one_that_it_goes_on_from(config, party):
    """Its checkpoint is newer than its last publication. Who waits for that one learns that it is gone."""

    async def main():
        async with party.joined("explorer") as explorer:
            async with party.trainer() as groups:
                trainer, publisher, store = begin(config, groups)
                await publisher.begin(trainer, 0)
                store.close()
            waits = asyncio.create_task(pull(followed_weights(config, "5eed", LocalBackend()), 0))
            async with party.trainer() as groups:
                # As if three steps had been trained and none of them published.
                groups.admission.trained = 0
                trainer, publisher, store = begin(config, groups, step=3)
                await publisher.begin(trainer, 3)
                with pytest.raises(VersionGone, match="version 0 is not in") as gone:
                    await waits
                assert lost_versions(gone.value)
                failed = FlowError("weights: it is gone")
                failed.__cause__ = gone.value
                assert lost_versions(failed) and not lost_versions(FlowError("weights: something else"))
                await explorer.until(lambda: explorer.admission.newest == 3)
                assert await pull(followed_weights(config, "5eed", LocalBackend()), 3) == 3
                store.close()

    run(main())


@pytest.mark.parametrize("there", [{0}, {0, 3}], ids=["not written", "written"])
def test_a_version_that_the_database_has_lost_is_published_when_its_trainer_comes_back(config, party, there):
    async def main():
        async with party.joined("explorer") as explorer, party.trainer() as groups:
            trainer, publisher, store = begin(config, groups)
            written = []
            folder = SimpleNamespace(has=lambda version: version in there | {*written}, retain=store.retain)

            async def publish(manifest, buckets):
                written.append(manifest.version)

            folder.publish = publish
            publisher._store = folder
            await publisher.begin(trainer, 3)
            await explorer.until(lambda: explorer.admission.newest == 3)
            assert written == [3][: 3 not in there]
            store.close()

    run(main())


def test_who_waits_for_weights_hears_that_the_run_is_over_and_how(config, party):
    async def main():
        async with party.trainer() as groups, party.joined("explorer") as explorer:
            assert not is_over(explorer)
            await groups.announce_end("finished", "")
            await explorer.until(lambda: explorer.stopped)
            assert not is_over(explorer), "the last version is validated, and the trainer has it"
            waiting = followed_weights(config, "5eed", LocalBackend()).pull(9, None)
            await groups.announce_end("failed", "no room")
            await attended(explorer, waiting, explorer.until(lambda: is_over(explorer)))

    run(main())


def test_nobody_waits_for_weights_for_ever(config, party):
    config.peer_timeout = 0.2

    async def main():
        with pytest.raises(RuntimeError, match=r"could not be fetched for 0.2 s \(peer_timeout\): version 9 is not in .* yet"):
            await pull(followed_weights(config, "5eed", LocalBackend()), 9)
        async with party.joined("explorer") as explorer:

            async def alone():
                raise Alone("there was no trainer")

            explorer.keep_in_sync = alone
            with pytest.raises(Alone):
                await attended(explorer, followed_weights(config, "5eed", LocalBackend()).pull(9, None))

    run(main())


def test_an_explorer_whose_versions_are_gone_for_good_begins_anew_ever_more_rarely_and_gives_up():
    rejoining = Rejoining(60.0)
    waits = []
    while (wait_s := rejoining.wait_s((0, 3))) is not None:
        waits.append(wait_s)
    assert waits[:4] == [0.0, 0.5, 1.0, 2.0] and sum(waits) == 60.0 and len(waits) < 12
    assert rejoining.wait_s((1, 2)) == 0.0, "the trainer has come back"


def test_an_error_without_a_text_has_a_reason_all_the_same():
    def fails():
        raise TimeoutError

    with pytest.raises(TimeoutError) as error:
        fails()
    assert one_line(error.value).startswith("in fails (test_apart.py:")
    assert one_line(ValueError("it is gone")) == "it is gone"


def test_a_validation_that_ended_after_the_checkpoint_is_recorded_once(config, party):
    """Its row of metrics.jsonl stays, for it is of an earlier step, and the database reports it again to a trainer that goes on
    from there."""

    class Record:
        validated = frozenset({0})

        def __init__(self):
            self.added = []

        def add_validation(self, result, sets):
            self.added.append(result.version)
            self.validated = self.validated | {result.version}
            return {}

    async def main():
        async with party.trainer() as groups, party.joined("explorer") as explorer:
            record = Record()
            reports = Reports(record, (), Observers(), groups.stop)
            for version in (0, 1):
                assert await explorer.claims_validation(version)
                await explorer.report_validation(version, asdict(ValidationResult(version, 0.5, 0.5, {}, 0, 1.0, {})))
            await groups.until(lambda: groups.known >= explorer.known)
            await Publisher(None, groups, reports, 0)._record_validations()
            await Publisher(None, groups, reports, 0)._record_validations()
            assert record.added == [1]

    run(main())

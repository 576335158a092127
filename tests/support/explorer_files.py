"""The folder of a run whose explorers are processes of their own, as they leave it."""

from database_party import B, Party, explore, run
from run_files import fate, lines, make_run, sample


def with_explorers(folder):
    """A run of a trainer and two explorers, of which the first has left; what it dropped lies in its own folder."""

    async def playing():
        party = Party(f"sqlite:///{folder}/groups.db")
        async with party.trainer() as trainer:
            async with party.joined("first") as first:
                await explore(first, 2 * B)
                await trainer.trained(await trainer.lease(0))
                await trainer.set_published(1)
                await first.set_served(1)
            async with party.joined("second") as second:
                await second.set_served(0)
                await explore(second, 1)

    run(playing())
    lines(folder / "groups.jsonl", [fate(0, 1), fate(1, 1), fate(4, 2, "dropped", "equal")])
    own = make_run(folder / "explorers/first", steps=1)
    lines(own / "samples-000000000000900.jsonl", [sample(2, 4, 0, fate="dropped: equal")])
    return folder

"""A stage that writes every rewarded response to an SQLite database, beside the run.

flow: {stages: [{after: reward, name: sample_database, worker: sample_database.SampleDatabase, args: {path: samples.db}}]}
"""

import asyncio
import sqlite3
from contextlib import closing

from roll import SampleGroup, Stage

TABLE = "CREATE TABLE IF NOT EXISTS samples (prompt TEXT, number INT, response TEXT, reward REAL, PRIMARY KEY (prompt, number))"


class SampleDatabase(Stage[SampleGroup, SampleGroup]):
    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    async def process(self, group: SampleGroup) -> SampleGroup:
        await asyncio.to_thread(self._write, [(s.prompt.uid, s.index, s.response_text, s.reward) for s in group.samples])
        return group

    def _write(self, rows: list[tuple[str, int, str, float | None]]) -> None:
        with closing(sqlite3.connect(self._path)) as database, database:
            database.execute(TABLE)
            database.executemany("REPLACE INTO samples VALUES (?, ?, ?, ?)", rows)  # a resumed run rolls some prompts out again

"""Databases of earlier layouts become one of the present layout: the statements that lead from each layout to the next.

The first process of this version that joins runs them, in the transaction in which it does. SQLite and PostgreSQL understand them
alike. `tables` says what the present layout is, these what was added when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, select, text

from roll.rollout.sql.tables import runs

STATEMENTS: Mapping[int, Sequence[str]] = {
    1: (
        "ALTER TABLE runs ADD COLUMN replayed INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE runs ADD COLUMN replaying INTEGER NOT NULL DEFAULT 0",
        "CREATE TABLE replays (group_id INTEGER NOT NULL, step INTEGER NOT NULL, seq BIGINT NOT NULL, lag INTEGER NOT NULL, "
        "PRIMARY KEY (group_id, step))",
    ),
    2: ("ALTER TABLE members ADD COLUMN devices INTEGER NOT NULL DEFAULT 1",),
    3: (
        "ALTER TABLE runs ADD COLUMN run_id VARCHAR(32) NOT NULL DEFAULT ''",
        "ALTER TABLE runs ADD COLUMN about TEXT NOT NULL DEFAULT '{}'",
        "ALTER TABLE runs ADD COLUMN max_steps INTEGER",
        "ALTER TABLE runs ADD COLUMN saved INTEGER NOT NULL DEFAULT 0",
    ),
}
"""Layout -> what makes the next one of it."""

LAYOUT = max(STATEMENTS) + 1
"""Number of the present set of tables. A database of a later one is refused by it."""
NAMED = 4
"""The first layout that says whose run it holds."""


def migrate(connection: Connection, layout: int) -> None:
    """`layout`: that of the database."""
    for number in range(layout, LAYOUT):
        for statement in STATEMENTS[number]:
            connection.execute(text(statement))
    connection.execute(text(f"UPDATE runs SET layout = {LAYOUT}"))


def check_layout(connection: Connection) -> None:
    """For who only reads. Raises `ValueError` if the tables are not those that this version reads."""
    if (layout := connection.execute(select(runs.c.layout)).scalar_one()) != LAYOUT:
        fix = "use its version" if layout > LAYOUT else "a process of this version that joins the run changes them"
        raise ValueError(f"its tables have layout {layout}, this version has {LAYOUT}: {fix}")

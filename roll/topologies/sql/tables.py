"""The tables of a run whose groups lie in a database. SQLite and PostgreSQL have the same.

One row of `runs` is locked by every transaction that changes something, so all of them happen one after the other, whatever
process they come from. `seq` numbers them; rows keep the number of the one that changed them last, and a process that knows
everything up to number s asks for rows with a larger one.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Index, Integer, LargeBinary, MetaData, String, Table, Text

metadata = MetaData()

runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),  # always 1: a database is one run's
    Column("layout", Integer, nullable=False),
    Column("run_id", String(32), nullable=False),  # that of `run.json` in the run's folder
    Column("about", Text, nullable=False),  # JSON: whose run that is; a process that is refused is told
    Column("contract", Text, nullable=False),  # JSON: what all processes of the run have to agree on
    Column("seq", BigInteger, nullable=False),
    Column("branch", Integer, nullable=False),  # how often versions were taken back
    Column("version", Integer, nullable=False),  # the oldest one that an explorer serves
    Column("newest", Integer, nullable=False),  # the newest one that is published
    Column("next_step", Integer, nullable=False),
    Column("max_steps", Integer),  # the trainer's; null until one has joined
    Column("saved", Integer, nullable=False),  # the step of the newest checkpoint that was completed
    Column("trained", Integer, nullable=False),  # groups
    Column("reused", Integer, nullable=False),  # rows of `reuses`
    Column("reusing", Integer, nullable=False),  # groups that the step which is leased trains again
    Column("depth", Float, nullable=False),  # how many batches ahead rollouts start
    Column("status", String(16), nullable=False),  # running, finished, stopped, failed
    Column("reason", Text, nullable=False),
)

groups = Table(
    "groups",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
    Column("state", String(12), nullable=False),  # in_flight, buffered, trained, dropped
    Column("member", Text, nullable=False),  # the explorer that rolls it out
    Column("task_set", String(32), nullable=False),
    Column("prompt_uid", Text, nullable=False),
    Column("domain", Text, nullable=False),
    Column("start_version", Integer, nullable=False),
    Column("oldest_version", Integer),  # of its tokens
    Column("newest_version", Integer),
    Column("samples", Integer),
    Column("tokens", Integer),
    Column("reward", Float),  # mean of its samples
    Column("reason", Text, nullable=False, default=""),  # why it was dropped
    Column("step", Integer),  # the one that trained it, or that was running when it was dropped; counted from 1
    Column("lag", Integer),
    Column("started_at", Float, nullable=False),  # seconds since 1970, by the clock of the process that wrote them
    Column("completed_at", Float),
    Column("ended_at", Float),
)
Index("groups_by_seq", groups.c.seq)
Index("groups_by_state", groups.c.state)

samples = Table(
    "samples",
    metadata,
    Column("group_id", Integer, primary_key=True, autoincrement=False),
    Column("digest", String(32), nullable=False),
    Column("data", LargeBinary, nullable=False),  # `roll.topologies.sql.rows`
)

reuses = Table(  # further uses of groups that were trained; `groups` has the first
    "reuses",
    metadata,
    Column("group_id", Integer, primary_key=True, autoincrement=False),
    Column("step", Integer, primary_key=True, autoincrement=False),  # counted from 1
    Column("seq", BigInteger, nullable=False),
    Column("lag", Integer, nullable=False),
)

members = Table(
    "members",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("role", String(12), nullable=False),  # explorer, trainer, both
    Column("term", Integer, nullable=False),  # how often this name has joined
    Column("state", String(8), nullable=False),  # alive, left, lost
    Column("host", Text, nullable=False),  # `roll.core.distributed.processes`
    Column("pid", Integer, nullable=False),
    Column("boot", Text, nullable=False),
    Column("process_table", Text, nullable=False),
    Column("ticks", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),  # the number of the last change that this process has committed
    Column("beat", BigInteger, nullable=False),  # grows as long as the process lives
    Column("served", Integer, nullable=False),  # explorers: the oldest version that one of its engines serves
    Column("joined_at", Float, nullable=False),
    Column("devices", Integer, nullable=False),  # of the engines
)

tasks = Table(
    "tasks",
    metadata,
    Column("task_set", String(32), primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("cursor", Text, nullable=False),  # JSON: `TaskSource.cursor`
)

validations = Table(
    "validations",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
    Column("member", Text, nullable=False),
    Column("result", Text),  # JSON; null while it is under way
)

"""A trainer and two explorers on hosts of their own, a PostgreSQL server on a fourth, and what is done to them meanwhile."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import postgres
from hosts import Host
from tiny_world import BATCH

PORT = 5432
APART = ("num_gpus_per_node=1", "resume_from_checkpoint=auto", "save_steps=5")
TRAINER = ("mode=train", "actor_train.device_mapping=0", *APART)
EXPLORER = ("mode=explore", "actor_infer.device_mapping=0", *APART)


class ServerOnHost(postgres.Server):
    def __init__(self, host: Host) -> None:
        self.host = host
        super().__init__(Path("/mnt/postgres"), host.address, PORT)

    @property
    def own_folder(self) -> Path:
        return self.host.folder / "postgres/data"

    def _make_folder(self) -> None:
        self.own_folder.parent.mkdir(exist_ok=True)
        super()._make_folder()

    def _run(self, command: Sequence[object], **options: Any) -> None:
        user = options.pop("user")
        as_user = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *map(str, command))
        subprocess.run(self.host.command(*as_user), **options)

    def ask(self, query: str, database: str = "run") -> str:
        """From its own host."""
        asks = ["psql", "-h", "127.0.0.1", "-p", str(PORT), "-U", "roll", "-d", database, "-Atc", query]
        return self.host.run(shlex.join(asks)).strip()


def server_on(host: Host) -> ServerOnHost:
    """A server that runs there, and has a database `run`."""
    server = ServerOnHost(host)
    server.make()
    server.start()
    server.ask("CREATE DATABASE run", "postgres")
    return server


@dataclass
class Apart:
    """Host 0 trains, hosts 1 and 2 explore, host 3 has the database."""

    site: Any
    server: ServerOnHost
    standby: ServerOnHost | None
    given: tuple[str, ...]
    trainer: Any
    explorers: list[Any]

    def again(self, host: Host, *more: str) -> Any:
        """Another trainer of the run."""
        return self.site.launch(host, *TRAINER, *self.given, *more, local=True)

    def explore(self, number: int) -> Any:
        """An explorer on the host of that number."""
        return self.site.launch(self.site.hosts[number], *EXPLORER, f"explorer_name=on-{number}", *self.given, local=True)

    def steps(self) -> int:
        return len(set(self.trainer.steps()))

    def wait_for_steps(self, more: int, deadline_s: float = 180.0) -> None:
        until = self.steps() + more
        self.trainer.wait_for(f"step {until}", lambda: self.steps() >= until, deadline_s)

    def end(self, steps: int, deadline_s: float = 240.0) -> None:
        """All end well, with every group trained once."""
        ended = [self.trainer.end(deadline_s), *(each.end(60) for each in self.explorers)]
        assert ended == [0, 0, 0], "\n".join(each.output[-4000:] for each in (self.trainer, *self.explorers))
        summary = self.trainer.summary()
        assert (summary["status"], summary["steps"], summary["groups"]["trained"]) == ("finished", steps, steps * BATCH)
        assert self.server.ask("SELECT count(*) FROM groups WHERE state = $$trained$$") == str(steps * BATCH)
        self.trainer.is_clean()


def begin(site: Callable[..., Any], steps: int, *more: str, standby: bool = False, **style: Any) -> Apart:
    """All are up, and two steps are trained. `standby`: on host 4 is another server, which has what this one commits."""
    here = site(5 if standby else 4, **style)
    server = server_on(here.hosts[3])
    servers, options, other = f"{server.address}:{PORT}", "", None
    if standby:
        other = ServerOnHost(here.hosts[4])
        other.copy(server)
        other.start()
        server.ask("ALTER SYSTEM SET synchronous_standby_names = $$*$$")
        server.ask("SELECT pg_reload_conf()")
        servers, options = f"{servers},{other.address}:{PORT}", "?target_session_attrs=read-write"
    given = (f"groups_database='postgresql+psycopg://roll@{servers}/run{options}'", f"max_steps={steps}", *more)
    trainer = here.launch(here.hosts[0], *TRAINER, *given, local=True)
    found = Apart(here, server, other, given, trainer, [])
    found.explorers = [found.explore(number) for number in (1, 2)]
    found.wait_for_steps(2)
    return found

"""What the processes of a run cost, from /proc, while they live."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Cost:
    cpu_s: float = 0.0
    """Processor seconds so far."""
    rss_mib: float = 0.0
    """Most resident memory that was seen. Pages that processes share are counted in each."""


@dataclass
class Watch:
    """Call it often; it keeps the last sight of each process below `pid`, by title."""

    costs: dict[tuple[int, str], Cost] = field(default_factory=dict)

    def __call__(self, pid: int) -> None:
        for child, title in family(pid).items():
            try:
                stat = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            cost = self.costs.setdefault((child, role(title) if child != pid else "driver"), Cost())
            cost.cpu_s = (int(stat[11]) + int(stat[12])) / TICKS
            cost.rss_mib = max(cost.rss_mib, int(stat[21]) * PAGE / 2**20)

    def of(self, name: str) -> Cost:
        """Of all processes of a role together."""
        mine = [cost for (_, title), cost in self.costs.items() if title == name]
        return Cost(sum(cost.cpu_s for cost in mine), sum(cost.rss_mib for cost in mine))


def family(pid: int) -> dict[int, str]:
    """pid -> title of a process and all below it."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            parents[int(entry.name)] = parent, title
    found, new = {pid: parents[pid][1]} if pid in parents else {}, {pid}
    while new:
        new = {child for child, (parent, _) in parents.items() if parent in new and child not in found}
        found |= {child: parents[child][1] for child in new}
    return found


def role(title: str) -> str:
    """Of a worker that Ray started, whose title begins with ray::<role>-<rank>; "other" for Ray's own processes."""
    return title[5:].split("-")[0].split(".")[0] if title.startswith("ray::") else "other"


RAYS_OWN = re.compile(r"(?:ray::|/)(raylet|gcs_server|log_monitor|DashboardAgent|RuntimeEnvAgent|IDLE)(?:\.py)?$")


def name_of(title: str) -> str:
    """Of a process below the driver: role and rank of a worker, or which of Ray's own processes it is."""
    if worker := re.match(r"ray::(\S+?-\d+)", title):
        return worker[1]
    program = title.split(" --")[0].strip()  # what follows are ports, and folders with names of other processes
    if program.endswith("/watchdog.py"):
        return "watchdog"
    return f"{own[1]} (Ray's)" if (own := RAYS_OWN.search(program)) else "other"

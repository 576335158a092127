"""`roll doctor --cluster`: needs of a run on every node of the Ray cluster that RAY_ADDRESS names, checked on each node."""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from roll.cli.findings import Finding
from roll.core.configs.problems import ConfigError, Problem
from roll.platform.ports import family_of

MESSAGE = 8 << 20
"""Bytes that a node sends to the driver's to measure the way."""
SLOW = 12.5e6
"""Bytes per second (100 Mbit/s) below which weights of a billion parameters take minutes."""
CLOCKS_S = 2.0
"""Clocks that differ by more make times in logs hard to compare."""
REACH_S = 5.0
AT_ONCE = 64
"""Nodes that one node tries to reach at the same time."""
ANSWER_S = 60.0
"""Time for all nodes together to answer a question."""
HEAD = 1 << 20
"""Bytes of each file of a model that its fingerprint covers, besides names and sizes: of safetensors the header lies there."""
COMPARED = ("python", "ray", "torch", "roll")


@dataclass(frozen=True, slots=True)
class NodeQuestions:
    """Questions to every node."""

    folder: str
    """Folder of the runs."""
    mark: str
    """A file that the driver has put there."""
    model: str
    """A folder, or none."""


class Probe:
    """Answers on a node."""

    def __init__(self, address: str) -> None:
        self._listener = socket.create_server((address, 0), family=family_of(address))
        threading.Thread(target=self._serve, daemon=True).start()

    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def facts(self, asked: NodeQuestions) -> dict[str, Any]:
        return {
            "host": platform.node(),
            "clock": time.time(),
            "versions": {"python": platform.python_version(), **{name: _version(name) for name in COMPARED[1:]}},
            "folder": _written(asked),
            "model": fingerprint(Path(asked.model)) if asked.model else "",
        }

    def reach(self, others: Sequence[tuple[str, int]]) -> list[str]:
        """Returns an error, or none, for each."""
        with ThreadPoolExecutor(min(len(others), AT_ONCE) or 1) as pool:
            return list(pool.map(lambda other: _error(*other), others))

    def speed(self, address: str, port: int) -> float:
        """Bytes per second from here to there."""
        with socket.create_connection((address, port), REACH_S) as connection:
            connection.settimeout(ANSWER_S)
            began = time.monotonic()
            connection.sendall(bytes(MESSAGE))
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
            return MESSAGE / (time.monotonic() - began)

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                while connection.recv(1 << 16):
                    pass
                connection.sendall(b"1")


def fingerprint(folder: Path) -> str:
    """Hash of a model's files: names, sizes, beginnings. Empty if there is no such folder."""
    if not folder.is_dir():
        return ""
    found = hashlib.sha256()
    for path in sorted(each for each in folder.iterdir() if each.is_file()):
        with path.open("rb") as file:
            found.update(f"{path.name} {path.stat().st_size} ".encode() + file.read(HEAD))
    return found.hexdigest()[:12]


def cluster_findings(output_dir: Path, model: str) -> Iterator[Finding]:
    """Raises `ConfigError` where there is no cluster to ask."""
    address = os.environ.get("RAY_ADDRESS", "local")
    if address == "local":
        raise ConfigError([Problem("--cluster", True, "needs a Ray cluster", "RAY_ADDRESS=<head>:6379 roll doctor --cluster")])
    import ray

    from roll.platform.ray_nodes import JoinedRay, RayNode, now_live

    joined = JoinedRay(address)
    try:
        joined.start()
    except RuntimeError as error:
        raise ConfigError([Problem("RAY_ADDRESS", address, str(error))]) from error
    mark = output_dir.absolute() / f".seen-{secrets.token_hex(8)}"
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        mark.touch()
        nodes = now_live()
        asked = NodeQuestions(str(output_dir.absolute()), str(mark), model and os.path.abspath(model))
        probes = {node: _started(ray, node) for node in nodes}
        answers: dict[RayNode, dict[str, Any]] = {}
        before, questions = dict[RayNode, float](), dict[RayNode, Any]()
        for node, probe in probes.items():
            before[node], questions[node] = time.time(), probe.facts.remote(asked)
        for node, answer in _heard(ray, questions):
            if isinstance(answer, Finding):
                yield answer
            else:
                answers[node] = {**answer, "late_s": lateness(before[node], answer["clock"], time.time())}
        answers = {node: answers[node] for node in nodes if node in answers}
        yield from _differences(answers, asked)
        yield from _ways(ray, {node: probes[node] for node in answers})
    finally:
        mark.unlink(missing_ok=True)
        joined.stop()


def lateness(before: float, clock: float, after: float) -> float:
    """By how many seconds at least a clock is ahead (behind: negative) that was read between two readings of this one."""
    return max(0.0, clock - after) + min(0.0, clock - before)


def _started(ray: Any, node: Any) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from roll.platform.child import same_imports

    there = NodeAffinitySchedulingStrategy(node.id, soft=False)
    options = {"num_cpus": 0, "scheduling_strategy": there, "runtime_env": {"env_vars": same_imports()}}
    return ray.remote(Probe).options(**options).remote(node.address)


def _differences(answers: Mapping[Any, Mapping[str, Any]], asked: NodeQuestions) -> Iterator[Finding]:
    """The first node is the driver's, with which the others are compared."""
    own = next(iter(answers.values()), {})
    for node, facts in answers.items():
        lacks = []
        for name, there in facts["versions"].items():
            if there != own["versions"][name]:
                lacks.append(f"{name} {there or 'missing'}, not {own['versions'][name]}")
        if facts["folder"]:
            lacks.append(facts["folder"])
        if facts["model"] != own["model"]:
            lacks.append(f"{asked.model} {'differs' if facts['model'] else 'is not there'}")
        if abs(facts["late_s"]) > CLOCKS_S:
            lacks.append(f"its clock is {abs(facts['late_s']):.0f} s {'behind' if facts['late_s'] < 0 else 'ahead'}")
        has = f"{node.cpus} CPUs, {node.accelerators} GPUs; {', '.join(f'{k} {v}' for k, v in facts['versions'].items())}"
        if lacks:
            fix = "one environment, one model and one output folder on all nodes"
            yield Finding("missing", str(node), f"{has}: {'; '.join(lacks)}", fix)
        else:
            yield Finding("ok", str(node), has)


def _ways(ray: Any, probes: Mapping[Any, Any]) -> Iterator[Finding]:
    """From every node to every other, and how fast to the driver's."""
    ports = dict(_heard(ray, {node: probe.port.remote() for node, probe in probes.items()}))
    yield from (silent for silent in ports.values() if isinstance(silent, Finding))
    ports = {node: ports[node] for node in probes if not isinstance(ports[node], Finding)}
    others = {node: [other for other in ports if other != node] for node in ports}
    tried = {node: probes[node].reach.remote([(other.address, ports[other]) for other in others[node]]) for node in ports}
    reached = dict(_heard(ray, tried))
    driver: Any = next(iter(probes), None)
    for node in ports:
        if isinstance(errors := reached[node], Finding):
            yield errors
            continue
        shut = [f"{other}: {error}" for other, error in zip(others[node], errors, strict=True) if error]
        if shut:
            yield Finding("missing", f"from {node}", f"cannot reach {'; '.join(shut)}", "allow all TCP ports between the nodes")
        elif node != driver and driver in ports:
            question = probes[node].speed.remote(driver.address, ports[driver])  # one after the other: they share the link
            yield from (_speed(node, driver, len(others[node]), speed) for _, speed in _heard(ray, {node: question}))


def _speed(node: Any, driver: Any, others: int, speed: float | Finding) -> Finding:
    if isinstance(speed, Finding):
        return speed
    text = f"reaches {others} others; {8 * speed / 1e6:.0f} Mbit/s to {driver}"
    slow = "a faster network, or explorers apart, which take what changed of the weights"
    return Finding("ok" if speed >= SLOW else "warn", f"from {node}", text, "" if speed >= SLOW else slow)


def _heard(ray: Any, questions: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Yields each node with its answer, as they come; with a finding instead where it fails, or has none after `ANSWER_S`."""
    waiting, deadline = {question: node for node, question in questions.items()}, time.monotonic() + ANSWER_S
    while waiting:
        done, _ = ray.wait([*waiting], timeout=max(0.0, deadline - time.monotonic()))
        for question in done or [*waiting]:
            node = waiting.pop(question)
            try:
                yield node, ray.get(question, timeout=0)
            except ray.exceptions.RayError as error:
                fix = "the same code and environment at the same path on every node, and a network that reaches all of them"
                yield node, Finding("missing", str(node), f"does not answer: {' '.join(str(error).split())[:200]}", fix)


def _written(asked: NodeQuestions) -> str:
    """An error, or none."""
    if not os.path.exists(asked.mark):
        return f"{asked.folder} is not the driver's"
    path = Path(f"{asked.mark}-{platform.node()}-{os.getpid()}")
    try:
        path.touch()
        path.unlink()
    except OSError as error:
        return f"cannot write in {asked.folder}: {error.strerror}"
    return ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _error(address: str, port: int) -> str:
    try:
        with socket.create_connection((address, port), REACH_S):
            return ""
    except OSError as error:
        return str(error)

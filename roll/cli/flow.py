"""`roll flow`: the graph of a run, from the lists of stages that the run itself is made of. Nothing starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from roll.cli.flow_graph import Graph, Node, graph_of
from roll.cli.flow_svg import svg
from roll.cli.options import OVERRIDES, Parser, complain, config_folder
from roll.configs.problems import ConfigError, Problem
from roll.pipeline.training_flow import AsyncTrainingFlow

_SHAPES = {"source": ('(["', '"])'), "stage": ('["', '"]'), "own": ('[["', '"]]'), "store": ('[("', '")]')}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 drawn, 2 bad configuration."""
    parser = Parser(
        prog="roll flow", description="The graph of a run: stages, queues, devices, locks.", epilog=OVERRIDES, allow_abbrev=False
    )
    parser.add_config_options("rlvr_config_async")
    parser.add_argument("--svg", metavar="FILE", help="write a picture, instead of printing Mermaid's text")
    try:
        options, overrides = parser.parse_with_overrides(sys.argv[1:] if arguments is None else arguments)
        graph = _graph(options.config_path, options.config_name, overrides)
        if options.svg is None:
            print("\n".join(mermaid(graph)))
        else:
            _write(Path(options.svg), svg(graph))
    except ConfigError as error:
        complain(error.problems)
        return 2
    return 0


def _graph(folder: str, name: str, overrides: Sequence[str]) -> Graph:
    """Raises `ConfigError`."""
    from roll.cli.check import contradictions
    from roll.cli.compose import load_to_start
    from roll.distributed.machine import this_machine

    config, report = load_to_start(config_folder(folder), name, overrides)
    if problems := contradictions(config, this_machine()):
        raise ConfigError(report.located(problems))
    sys.path.append(os.getcwd())  # a stage of the user's own lies where the command is given
    return graph_of(AsyncTrainingFlow(config).pipeline.outline(), config)


def mermaid(graph: Graph) -> Iterator[str]:
    yield "flowchart LR"
    for title, half in graph.halves.items():
        yield f"  subgraph {title}"
        yield from (f"    {_shaped(node)}" for place in half for node in place)
        yield "  end"
    yield from (f"  {_shaped(node)}" for node in graph.stores)
    for edge in graph.edges:
        label = f"|{edge.label}|" if edge.label else ""
        yield f"  {_id(edge.start)} {'-.->' if edge.dashed else '-->'}{label} {_id(edge.end)}"
    yield from (f'  lock{number}["{text}"]:::lock' for number, text in enumerate(graph.locks, 1))
    yield "  classDef lock stroke-dasharray: 6 3"
    locked = [_id(node.name) for half in graph.halves.values() for place in half for node in place if node.lock]
    if locked:
        yield f"  class {','.join(locked)} lock"


def _shaped(node: Node) -> str:
    before, after = _SHAPES[node.kind]
    lines = [f"<b>{node.name}</b>", *node.lines, *([node.lock] if node.lock else [])]
    return f"{_id(node.name)}{before}{'<br/>'.join(lines)}{after}"


def _id(name: str) -> str:
    """Mermaid has words of its own, as `end`."""
    return f"s_{name}"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigError([Problem("--svg", str(path), f"cannot be written: {error.strerror}", "name another file")]) from None


if __name__ == "__main__":
    sys.exit(main())

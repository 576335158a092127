"""What the built-in tools answer, and what making them refuses."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgpack
import pytest

from roll.core.configs.problems import Collector, ConfigError
from roll.core.configs.tools import ToolWrapperConfig
from roll.core.errors import SandboxFailed, ToolFailed
from roll.envs.tools.calculator import compute
from roll.envs.tools.python_code import PythonCode
from roll.envs.tools.search import Search
from roll.envs.tools.tool import Tool, text_parameter
from roll.envs.tools.toolbox import LONGEST, Toolbox
from roll.plan.rules.loading import load_config


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", "7"),
        ("-(2 ^ 10)", "-1024"),
        ("sqrt(2) * sqrt(2)", "2"),
        ("7 // 2 + 7 % 4", "6"),
        ("1 / 3", "0.333333333333"),
    ],
)
def test_expressions_are_computed(expression, value):
    assert compute(expression) == value


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("9 ** 9 ** 9", "too large"),
        ("(-1) ** 0.5", "no real number"),
        ("1 / 0", "division by zero"),
        ("__import__('os')", "no expression"),
        ("(lambda: 1)()", "no expression"),
        ("[1][0]", "no expression"),
        ("True + 1", "no expression"),
        ("(" * 450 + "1" + ")" * 450, "no expression"),
        ("-" * 999 + "1", "no expression"),
        ("1" * 1001, "more than 1000"),
        ("sqrt(-1)", "no expression"),
    ],
)
def test_what_is_no_arithmetic_is_refused_and_costs_nothing(expression, why):
    with pytest.raises(ToolFailed, match=why):
        compute(expression)


def used(tool, **arguments):
    async def run():
        try:
            return await tool.run(arguments)
        finally:
            await tool.close()

    return asyncio.run(run())


@pytest.mark.slow
def test_a_program_is_run_in_the_sandbox_and_its_errors_are_told():
    assert used(PythonCode(), code="print(sum(range(5)))\nprint('done')") == "10\ndone"
    with pytest.raises(ToolFailed) as failed:
        used(PythonCode(), code="print('first')\nx = 1 / 0")
    told = str(failed.value)
    assert told.startswith("first\nTraceback") and "line 2" in told and "ZeroDivisionError: division by zero" in told
    assert "roll/" not in told, "no frame of ours"
    with pytest.raises(ToolFailed, match=r"^ZeroDivisionError: division by zero\nThe program has failed: exit code 1\.$"):
        used(PythonCode(keep_error_last_line=True), code="1 / 0")
    with pytest.raises(ToolFailed, match="printed nothing"):
        used(PythonCode(), code="x = 1")
    with pytest.raises(ToolFailed, match="too much time"):
        used(PythonCode(timeout=0.5), code="while True: pass")
    with pytest.raises(ToolFailed, match="Error"):
        used(PythonCode(), code="import socket; socket.socket()")


def test_a_corpus_is_searched_by_words(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    rows = [
        {"title": "Canaan Dog", "text": "a breed of dog of the desert"},
        {"contents": "Lake\nfrozen water, and a dog"},
        "a text without a title",
    ]
    corpus.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    search = Search(corpus=str(corpus), topk=2)
    assert used(search, query="Which DOG breed?") == (
        "<information>Doc 1(Title: Canaan Dog) a breed of dog of the desert\n"
        "Doc 2(Title: Lake) frozen water, and a dog</information>"
    )
    assert used(search, query="title") == "<information>Doc 1(Title: ) a text without a title</information>"
    assert used(search, query="zebra") == "<information>No document was found.</information>"
    with pytest.raises(ToolFailed, match="takes query"):
        used(search, query="dog", most=3)


def test_a_retrieval_service_is_asked_as_rolls_is():
    class Retrieval(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(msgpack.unpackb(self.rfile.read(int(self.headers["content-length"]))))
            body = msgpack.packb({"result": [{"document": {"contents": "Title\nthe text"}, "score": 1.0}]})
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    asked = []
    with HTTPServer(("127.0.0.1", 0), Retrieval) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/retrieve"
        assert used(Search(search_url=url, topk=4), query="x") == "<information>Doc 1(Title: Title) the text</information>"
    assert asked == [{"query": "x", "topk": 4, "return_scores": True}]
    with pytest.raises(ToolFailed, match="does not answer"):
        used(Search(search_url=url), query="x")


class Slow(Tool):
    name, description, parameters = "slow", "Waits.", text_parameter("what", "")

    async def run(self, arguments):
        if arguments["what"] == "wait":
            await asyncio.Event().wait()
        if arguments["what"] == "raise":
            raise KeyError("what it raises")
        return arguments["what"] * LONGEST


def toolbox(*configs, **more):
    wrapper = load_config(ToolWrapperConfig, {"tool_configs": list(configs), **more})
    return Toolbox(wrapper, "w", 0.05)


def test_whatever_a_tool_does_costs_its_call_at_most():
    box = toolbox({"tool_id": "calculator"})
    results = [asyncio.run(box.run(Slow(), {"what": what})) for what in ("wait", "raise", "ab", "\ud800")]
    assert [result.failed for result in results] == [True, True, False, True]
    assert results[0].text == "slow has given no result within 0.05 s"
    assert "KeyError" in results[1].text and "surrogate" in results[3].text
    assert results[2].text.endswith(f"({LONGEST:,} characters more)")


@pytest.mark.parametrize(
    ("config", "key", "message"),
    [
        ({"tool_id": "calculater"}, "w.tool_configs.0.tool_id", "did you mean calculator"),
        ({"tool_id": "mcp", "tool_args": {"command": []}}, "w.tool_configs.0.tool_args", "there is no program"),
        ({"tool_id": "no.such.Tool"}, "w.tool_configs.0.tool_id", "cannot be imported"),
        ({"tool_id": "json.JSONDecoder"}, "w.tool_configs.0.tool_id", "derives from roll.Tool"),
        ({"tool_id": "python_code", "tool_args": {"timeot": 3}}, "w.tool_configs.0.tool_args.timeot", "did you mean timeout"),
        ({"tool_id": "python_code", "tool_args": {"limits": {"wall_s": 3}}}, "w.tool_configs.0.tool_args", "limits has wall_s"),
        ({"tool_id": "search"}, "w.tool_configs.0.tool_args", "give corpus"),
        ({"tool_id": "search", "tool_args": {"corpus": "/no/file"}}, "w.tool_configs.0.tool_args", "No such file"),
    ],
)
def test_tools_that_cannot_be_made_are_refused_by_key(config, key, message):
    with pytest.raises(ConfigError) as refused:
        toolbox(config)
    (problem,) = refused.value.problems
    assert problem.key == key and message in str(problem)


def test_what_a_machine_lacks_is_found_out_before_a_run(monkeypatch):
    monkeypatch.setattr("roll.envs.tools.python_code.state_here", lambda: {"in_force": [], "missing": ["namespaces; without: x"]})
    box, collect = toolbox({"tool_id": "python_code"}, {"tool_id": "calculator"}), Collector()
    assert box.look_around("w", collect) == ["the sandbox of python_code lacks: namespaces; without: x"]
    collect.raise_if_any()

    def no_sandbox():
        raise SandboxFailed("programs are shut in on Linux only")

    monkeypatch.setattr("roll.envs.tools.python_code.state_here", no_sandbox)
    assert box.look_around("w", collect) == []
    with pytest.raises(ConfigError, match=r"w\.tool_configs\.0\.tool_id = 'python_code': programs are shut in on Linux only"):
        collect.raise_if_any()


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="names two tools alike"):
        toolbox({"tool_id": "calculator"}, {"tool_id": "calculator"})

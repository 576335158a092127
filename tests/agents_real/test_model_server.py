"""The same programs, unchanged, with a real model server behind the address: vLLM's, with a model that was taught the program's
conversations. Not here: `verifiers_turns`, whose harness asks for the environment's part, too, and `pydantic_ai_loop`, which
insists on a call (`tool_choice: required`): vLLM has such calls written in another form than the model was taught."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from lessons import Lesson, Settings, make_model, record
from roster import AGENTS
from scripts.shop import prices
from train import EPISODES, python_of

SCRIPTS = Path(__file__).parent / "scripts"
TAUGHT = {
    "openai_loop": ("openai_loop", "anthropic_loop", "responses_stream", "openai_agents_stream"),
    **{name: (name,) for name in ("openai_agents_chat", "openai_agents_mcp", "langgraph_loop")},
    **{name: (name,) for name in ("smolagents_tools", "smolagents_code", "mini_swe")},
}
"""Whose conversations a model was taught, and who asks it: what one has taught is right for all whose tools and answers are the
same, and whose dialects differ."""
STARTS_S, PROGRAM_S = 1200, 300
ARGUMENTS = (
    "--served-model-name=policy --dtype=float32 --max-model-len=4096 --enforce-eager --enable-auto-tool-choice "
    '--tool-call-parser=hermes --override-generation-config={"temperature":0}'
)


@pytest.fixture(scope="module")
def server(request, tmp_path_factory):
    """The address of a server whose model was taught the conversations of this program."""
    pytest.importorskip("vllm")
    taught = request.param
    agent, folder = AGENTS[taught], tmp_path_factory.mktemp("served")
    python = python_of(agent)
    if not python.exists():
        pytest.skip(f"there is no {python}: make test-agents makes it")
    lessons = [each for episode in record(taught, agent, python, EPISODES) for each in episode.lessons]
    lessons += [one for each in lessons for one in without_answers(each)]
    make_model(folder / "model", lessons, agent.player, Settings(heads=2))  # vLLM has heads of 32 and more on CPU
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", f"--model={folder / 'model'}", f"--port={port}"]
    with open(folder / "log.txt", "wb") as log:
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_RESPONSES_API_STORE": "1"}
        process = subprocess.Popen([*words, "--host=127.0.0.1", *ARGUMENTS.split(" ")], env=environment, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}"
        _until_it_answers(process, f"{address}/v1/models", folder / "log.txt")
        yield address
    finally:
        process.terminate()
        process.wait()


def without_answers(conversation: list[Lesson]) -> list[list[Lesson]]:
    """The same as vLLM shows it behind `previous_response_id`: it leaves the model's calls out, and has their results alone."""
    begun, seen = "<|im_start|>assistant\n", ""
    lessons = []
    for lesson in conversation:
        seen = seen.removesuffix(begun) + (lesson.told.removeprefix("\n") if seen else lesson.told)
        lessons.append([Lesson(seen, lesson.best, lesson.played)])
    return lessons[1:]


def _until_it_answers(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    """A server says by no event that it has started."""
    until = time.monotonic() + STARTS_S
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(address).close()
            return
        except urllib.error.URLError:
            time.sleep(0.5)
    raise AssertionError(f"the server does not answer:\n{log.read_text(errors='replace')[-3000:]}")


@pytest.mark.parametrize(
    ("server", "name"), [(taught, name) for taught, names in TAUGHT.items() for name in names], indirect=["server"]
)
def test_a_program_runs_against_a_model_server_unchanged(name, server, tmp_path):
    python = python_of(AGENTS[name])
    if not python.exists():
        pytest.skip(f"there is no {python}: make test-agents makes it")
    own = {"OPENAI_BASE_URL": f"{server}/v1", "OPENAI_API_KEY": "none", "ANTHROPIC_BASE_URL": server, "ANTHROPIC_API_KEY": "none"}
    given = {each: os.environ[each] for each in ("PATH", "LD_LIBRARY_PATH") if each in os.environ}
    environment = given | own | AGENTS[name].environment | {"HOME": str(tmp_path)}
    shutil.copytree(SCRIPTS, tmp_path, dirs_exist_ok=True)  # they are started where they lie
    command = [str(python), f"{name}.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PROGRAM_S)
    assert done.returncode == 0, done.stderr
    if name == "mini_swe":
        assert (tmp_path / "answer.txt").read_text() == "Submitted"
        assert "return one + other" in (tmp_path / "repository" / "till.py").read_text()
    else:
        assert (tmp_path / "answer.txt").read_text() == str(sum(prices(0).values()))

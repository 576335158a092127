"""The same programs, unchanged, with a real model server behind the address: vLLM's, with the model that one has taught."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from lessons import Settings, make_model, record
from roster import AGENTS
from scripts.shop import prices
from train import EPISODES, python_of

SCRIPTS = Path(__file__).parent / "scripts"
TAUGHT = "openai_loop"
STARTS_S, PROGRAM_S = 1200, 300
ARGUMENTS = (
    "--served-model-name=policy --dtype=float32 --max-model-len=4096 --enforce-eager --enable-auto-tool-choice "
    '--tool-call-parser=hermes --override-generation-config={"temperature":0}'
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a server whose model was taught the conversations of `TAUGHT`."""
    pytest.importorskip("vllm")
    agent, folder = AGENTS[TAUGHT], tmp_path_factory.mktemp("served")
    python = python_of(agent)
    if not python.exists():
        pytest.skip(f"there is no {python}: make test-agents makes it")
    lessons = [each for episode in record(TAUGHT, agent, python, EPISODES) for each in episode.lessons]
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


@pytest.mark.parametrize("name", ["openai_loop", "anthropic_loop", "responses_stream", "openai_agents_stream"])
def test_a_program_runs_against_a_model_server_unchanged(name, server, tmp_path):
    """Tools and answers are the same, only the dialects differ: what one has taught is right for all."""
    python = python_of(AGENTS[name])
    if not python.exists():
        pytest.skip(f"there is no {python}: make test-agents makes it")
    own = {"OPENAI_BASE_URL": f"{server}/v1", "OPENAI_API_KEY": "none", "ANTHROPIC_BASE_URL": server, "ANTHROPIC_API_KEY": "none"}
    given = {each: os.environ[each] for each in ("PATH", "LD_LIBRARY_PATH") if each in os.environ}
    environment = given | own | {"HOME": str(tmp_path), "PYTHONPATH": str(SCRIPTS)}
    command = [str(python), str(SCRIPTS / f"{name}.py")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PROGRAM_S)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "answer.txt").read_text() == str(sum(prices(0).values()))

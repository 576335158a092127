"""An engine in a process of another interpreter is the engine itself: results, weights, refusals, cancelling, and the end.

`hf_infer`, which starts in seconds, stands for vLLM here (vllm/test_started_otherwise.py has that); the other interpreter is this
one, with nothing of its path but this project's package.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import sys
from collections.abc import Coroutine, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Forks
from programs import environment

from roll.core.data.sample import VersionSpan
from roll.core.errors import CallFailed, EngineClosed, EngineError
from roll.core.weights.bucket import Bucket
from roll.core.workers.infer_interface import GenerateRequest, GenerateResult, SamplingParams
from roll.platform.child import _line
from roll.platform.interpreters import inspect_interpreter
from roll.strategies.infer.foreign import OtherInterpreterStrategy, error_of, request_of, result_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def options(folder: Any) -> dict[str, Any]:
    return {"model_path": str(folder), "max_running_requests": 4, "max_length": 400, "threads": 1}


class Hosted:
    def __init__(self, folder: Any) -> None:
        self.runner = asyncio.Runner()
        self.engine = OtherInterpreterStrategy(sys.executable, "hf_infer", options(folder))

    def run(self, body: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(asyncio.wait_for(body, 60))


@pytest.fixture(scope="module")
def folder(lab: Any, tmp_path_factory: Any) -> Any:
    folder = tmp_path_factory.mktemp("model")
    lab.model(seed=0).save_pretrained(folder)
    lab.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def hosted(folder: Any) -> Iterator[Hosted]:
    hosted = Hosted(folder)
    yield hosted
    hosted.run(hosted.engine.close())
    hosted.runner.close()


def test_an_engine_without_metrics_of_its_own_has_none(hosted: Hosted) -> None:
    assert hosted.run(hosted.engine.own_metrics()) == []


def test_plain_values_come_back_as_they_were() -> None:
    sampling = SamplingParams(0.7, 0.9, 5, 33, (1, 2), ("a\n", "é"), False, 2**40)
    request = GenerateRequest("r", (3, 4), sampling, (5,), 0)
    assert request_of(json.loads(json.dumps(asdict(request)))) == request
    result = GenerateResult("r", [1], [-0.1], [VersionSpan(0, 1, 7)], "stop", "x", True)
    assert result_of(json.loads(_line({"value": asdict(result)}))["value"]) == result


def test_errors_keep_the_type_that_callers_know() -> None:
    for error, returned in (
        (ValueError("bad"), ValueError),
        (EngineClosed("over"), EngineClosed),
        (UnicodeDecodeError("utf-8", b"", 0, 1, "why"), ValueError),
        (KeyError("x"), RuntimeError),
    ):
        told = error_of(CallFailed([cls.__name__ for cls in type(error).__mro__], str(error)))
        assert type(told) is returned
        assert str(told) == (str(error) if type(error) is returned else f"{type(error).__name__}: {error}")


def test_many_calls_at_once_and_weights_between_them(lab: Any, hosted: Hosted) -> None:
    """To 1e-4 of a plain forward; other weights are off by nats."""
    requests = [lab.request(f"r{i}", [i + 1, 9], max_new_tokens=40, seed=i, temperature=0.8) for i in range(8)]

    async def both() -> tuple[list[GenerateResult], list[GenerateResult], float]:
        before = await asyncio.gather(*map(hosted.engine.generate, requests))
        buckets, manifest = lab.weights(lab.model(seed=1), 1)
        for bucket in buckets:
            await hosted.engine.receive_bucket(1, bucket)
        pause = await hosted.engine.activate_weights(manifest, "interrupt")
        return before, await asyncio.gather(*map(hosted.engine.generate, requests)), pause

    before, after, pause = hosted.run(both())
    assert pause > 0
    for version, results in enumerate((before, after)):
        for request, result in zip(requests, results, strict=True):
            assert (len(result.token_ids), result.versions) == (40, [VersionSpan(0, 40, version)])
            true = lab.true_logprobs(lab.model(seed=version), request.prompt_ids, result.token_ids, 0.8)
            assert (torch.tensor(result.logprobs) - true).abs().max() < 1e-4
    stats = hosted.run(hosted.engine.stats())
    assert (stats.version, stats.running, stats.generated_tokens) == (1, 0, 640)


def test_what_the_engine_refuses_is_refused_here_and_it_goes_on(lab: Any, hosted: Hosted) -> None:
    with pytest.raises(ValueError, match="token ids must lie in"):
        hosted.run(hosted.engine.generate(lab.request("bad", [999])))
    [bucket, *_], manifest = lab.weights(lab.model(seed=2), 2)
    with pytest.raises(ValueError, match="bucket is corrupt"):
        hosted.run(hosted.engine.receive_bucket(2, Bucket(bucket.tensors, bucket.checksum + 1)))
    with pytest.raises(ValueError, match="weights of version 2"):
        hosted.run(hosted.engine.activate_weights(manifest, "interrupt"))
    assert hosted.run(hosted.engine.generate(lab.request("good", [9], max_new_tokens=3))).finish_reason == "length"


def test_a_cancelled_call_ends_in_the_engine_and_abort_returns_what_there_is(lab: Any, hosted: Hosted) -> None:
    async def main() -> GenerateResult:
        calls = [asyncio.ensure_future(hosted.engine.generate(lab.request(n, [1], max_new_tokens=390))) for n in "ab"]
        while (await hosted.engine.stats()).running < 2:
            await asyncio.sleep(0)
        calls[0].cancel()
        while (await hosted.engine.stats()).running > 1:
            await asyncio.sleep(0)
        await hosted.engine.abort(["b"])
        return await calls[1]

    result = hosted.run(main())
    assert result.finish_reason == "abort" and len(result.token_ids) < 390


def test_an_engine_that_is_killed_ends_the_calls_that_wait_and_those_that_come(lab: Any, folder: Any) -> None:
    hosted = Hosted(folder)

    async def main() -> None:
        call = asyncio.ensure_future(hosted.engine.generate(lab.request("r", [1], max_new_tokens=390)))
        while (await hosted.engine.stats()).running < 1:
            await asyncio.sleep(0)
        os.kill(hosted.engine._child.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="ended: signal 9"):
            await call
        with pytest.raises(EngineError, match="ended: signal 9"):
            await hosted.engine.stats()
        await hosted.engine.close()
        with pytest.raises(EngineClosed):
            await hosted.engine.stats()

    hosted.run(main())
    hosted.runner.close()


def test_an_engine_does_not_outlive_its_worker(folder: Any, forks: Forks, tmp_path: Path) -> None:
    program = (
        "import os, sys, signal; from roll.strategies.infer.foreign import OtherInterpreterStrategy\n"
        f"engine = OtherInterpreterStrategy(sys.executable, 'hf_infer', {options(folder)!r})\n"
        "print(engine._child.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    log = tmp_path / "log.txt"
    with log.open("wb") as output:
        assert forks.start(["-c", program], tmp_path, environment(), output).wait(200) == -signal.SIGKILL
    engine = int(log.read_text().split()[-1])
    with contextlib.suppress(ProcessLookupError):  # gone already
        assert select.select([os.pidfd_open(engine)], [], [], 30)[0], "the engine lives on"


def test_an_engine_that_cannot_start_says_why(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="unknown inference strategy 'nothing'"):
        OtherInterpreterStrategy(sys.executable, "nothing", {})


def test_an_interpreter_is_looked_into_without_importing_anything(tmp_path: Any) -> None:
    seen = inspect_interpreter(sys.executable, "torch", ["no-such", "torch"], ["json", "no_such_module"])
    assert seen == inspect_interpreter(None, "torch", ["no-such", "torch"], ["json", "no_such_module"])
    assert (seen["missing"], seen["python"]) == (["no_such_module"], list(sys.version_info[:2]))
    assert seen["version"] == torch.__version__ and str(seen["folder"]) == os.path.dirname(torch.__file__)
    with pytest.raises(ValueError, match="no-python"):
        inspect_interpreter(str(tmp_path / "no-python"), "torch", [], [])
    with pytest.raises(ValueError, match="is not a working Python interpreter"):
        inspect_interpreter("/bin/false", "torch", [], [])


@pytest.mark.parametrize(
    ("module", "needs", "told"), [("by_path_alone", [], "by_path_alone"), ("json", ["by_path_alone"], "by_path_alone")]
)
def test_an_interpreter_whose_packages_only_pythonpath_finds_is_refused_with_that_reason(
    tmp_path, monkeypatch, module, needs, told
):
    """PYTHONPATH is this interpreter's, and another's processes start without it."""
    (tmp_path / "by_path_alone").mkdir()
    (tmp_path / "by_path_alone" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ValueError, match=f"finds {told} by PYTHONPATH alone.*{tmp_path}.*pth"):
        inspect_interpreter(sys.executable, module, [], needs)
    assert inspect_interpreter(sys.executable, "no_such_module", [], [])["folder"] is None

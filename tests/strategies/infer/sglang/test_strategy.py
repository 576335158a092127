"""The real SGLang server. `make test-sglang` makes its environment and names the interpreter; else these are skipped."""

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

import httpx
import pytest
import torch

from roll.core.errors import EngineError
from roll.core.weights.bucket import WeightManifest, manifest_of
from roll.core.workers.infer_interface import EngineStats, GenerateRequest, SamplingParams
from roll.strategies.infer.request_queue import RequestBounds, RequestQueue
from roll.strategies.infer.sglang.arguments import check_argument, check_installed, server_arguments
from roll.strategies.infer.sglang.server import SGLangServer, command_line
from roll.strategies.infer.sglang.strategy import SGLangInferStrategy
from roll.transports.buckets import make_buckets

from ..conftest import make_model, make_tokenizer

PYTHON = os.environ.get("SGLANG_PYTHON")
pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]
real = pytest.mark.skipif(PYTHON is None, reason="needs SGLANG_PYTHON, an interpreter with SGLang (make test-sglang)")
PROMPT = (65, 66, 67, 68)
CLOSE = 1e-4
"""Largest difference of log-probs between the engine and a plain float32 forward pass."""


def model_of(version):
    return make_model(seed=version)


def rescored(version, result, temperature=1.0):
    """[n] log-probs of the result's tokens under the weights of `version`."""
    with torch.no_grad():
        logits = model_of(version)(torch.tensor([[*PROMPT, *result.token_ids]])).logits[0, len(PROMPT) - 1 : -1]
    return (logits / temperature).log_softmax(-1).gather(-1, torch.tensor(result.token_ids)[:, None])[:, 0]


def distance(version, result, start=0, stop=None, temperature=1.0):
    expected = rescored(version, result, temperature)[start:stop]
    return (expected - torch.tensor(result.logprobs)[start:stop]).abs().max().item()


def request(name, length=60, partial=(), **sampling):
    return GenerateRequest(name, PROMPT, SamplingParams(max_new_tokens=length, **sampling), tuple(partial))


class Engine:
    """The server with the event loop that its client lives in, and the weights it serves."""

    def __init__(self, folder):
        self.version = 0
        self.loop = asyncio.new_event_loop()
        self.strategy = SGLangInferStrategy(str(folder), max_running_requests=8, max_length=200, engine_args={"python": PYTHON})

    def run(self, coroutine):
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, 60))

    async def generate(self, *requests):
        return await asyncio.gather(*(self.strategy.generate(one) for one in requests))

    async def update(self, mode):
        version = self.version + 1
        buckets = list(make_buckets(model_of(version).named_parameters(), 20_000))
        for bucket in buckets:
            await self.strategy.receive_bucket(version, bucket)
        self.version = version
        return await self.strategy.activate_weights(manifest_of(version, buckets), mode)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    model_of(0).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    engine = Engine(folder)
    yield engine
    engine.run(engine.strategy.close())
    engine.loop.close()


def test_flags_are_given_as_the_server_spells_them():
    sizes = {"seed": 3, "max_length": 8, "max_running_requests": 2, "version": 0}
    given = {"enable_memory_saver": True, "disable_overlap_schedule": True}
    line = command_line(server_arguments("folder", given, devices=["cuda:0"], dtype="bfloat16", **sizes))
    assert {"--enable-memory-saver", "--disable-overlap-schedule"} < set(line)


class Posted(SGLangInferStrategy):
    """Without a server: what would be sent to it."""

    def __init__(self, heeds_seeds=False):
        self._heeds_seeds, self._stats = heeds_seeds, EngineStats()
        self._queue, self.sent = RequestQueue(RequestBounds(256, 64), 1), []

    async def _post(self, route, body):
        self.sent.append((route, body))


def test_a_sleeping_server_gives_back_all_it_has():
    """Weights, KV cache and CUDA graphs: no tags mean all."""

    async def main():
        strategy = Posted()
        await strategy.sleep()
        await strategy.wake()
        return strategy.sent

    assert asyncio.run(main()) == [("release_memory_occupation", {}), ("resume_memory_occupation", {})]


def test_a_seed_is_sent_to_a_server_that_heeds_it():
    seeded = request("a", 5, seed=2**31 + 3)
    assert "sampling_seed" not in Posted()._body(seeded, 5)["sampling_params"]
    assert Posted(heeds_seeds=True)._body(seeded, 5)["sampling_params"]["sampling_seed"] == 3


@real
@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("limits", [{}, {"top_p": 0.5}, {"top_k": 3}])
def test_log_probs_are_those_of_the_whole_distribution_at_the_temperature(engine, temperature, limits):
    for result in engine.run(engine.generate(*(request(f"r{i}", temperature=temperature, **limits) for i in range(4)))):
        assert len(result.token_ids) == len(result.logprobs) == 60 and result.finish_reason == "length"
        assert distance(engine.version, result, temperature=temperature) < CLOSE


@real
def test_stops_at_a_token_and_at_a_text(engine):
    (result,) = engine.run(engine.generate(request("free", 20, temperature=0)))
    token = result.token_ids[7]
    first = result.token_ids.index(token)
    (stopped,) = engine.run(engine.generate(request("token", 20, temperature=0, stop_token_ids=(token,))))
    assert stopped.finish_reason == "stop" and stopped.token_ids == result.token_ids[: first + 1]
    words = make_tokenizer().decode([next(t for t in result.token_ids if t < 94)])
    (cut,) = engine.run(
        engine.generate(request("text", 20, temperature=0, stop_strings=(words,), include_stop_str_in_output=False))
    )
    assert cut.finish_reason == "stop" and words not in cut.text
    assert cut.token_ids == result.token_ids[: len(cut.token_ids)], "the tokens that spell the stop string stay"


@real
def test_an_aborted_request_keeps_its_tokens_and_is_resumed_from_them(engine):
    async def main():
        tasks = [asyncio.ensure_future(engine.strategy.generate(request(f"a{i}", 150))) for i in range(12)]
        while (await engine.strategy.stats()).queued != 4:
            await asyncio.sleep(0.01)
        await engine.strategy.abort(["a0", "a11"])
        return await asyncio.gather(*tasks)

    results = engine.run(main())
    assert [result.finish_reason for result in results] == ["abort", *["length"] * 10, "abort"]
    assert not results[11].token_ids and len(results[0].token_ids) < 150
    (rest,) = engine.run(engine.generate(request("again", 150, partial=results[0].token_ids)))
    assert len(results[0].token_ids) + len(rest.token_ids) == 150
    whole = rest
    whole.token_ids, whole.logprobs = results[0].token_ids + rest.token_ids, results[0].logprobs + rest.logprobs
    assert distance(engine.version, whole) < CLOSE


@real
@pytest.mark.parametrize("mode", ["interrupt", "in_flight", "drain"])
def test_every_token_has_the_log_prob_that_the_weights_of_its_version_give_it(engine, mode):
    generator = random.Random(mode)

    async def main():
        tasks = [asyncio.ensure_future(engine.strategy.generate(request(f"{mode}{i}", 150))) for i in range(12)]
        while not any(task.done() for task in tasks):
            await asyncio.sleep(generator.uniform(0.05, 0.4))  # an update at any moment, so nothing to wait for
            assert await engine.update(mode) > 0
        return await asyncio.gather(*tasks)

    before = engine.version
    results = engine.run(main())
    assert {span.version for result in results for span in result.versions} <= set(range(before, engine.version + 1))
    for result in results:
        assert [span.start for span in result.versions] == [0, *(span.stop for span in result.versions[:-1])]
        assert result.versions[-1].stop == 150
        if mode == "drain":
            assert len(result.versions) == 1
        # What an in-flight update overtook is sampled over the KV cache of older weights: no model of one version gives it. That
        # may be a first span, too, if the update came between the prompt and the first token.
        for span in (one for one in result.versions if mode != "in_flight" or one.version == before):
            assert distance(span.version, result, span.start, span.stop) < CLOSE
    assert mode != "in_flight" or results[0].versions[0].version == before, "the test is blind"
    if mode != "drain":
        assert any(len(result.versions) > 1 for result in results)


@real
def test_kept_sets_outlive_a_second_prefill(engine):
    """The server puts what an update interrupts back into its queue, with the sets so far."""
    cut = {"with_kept": True, "top_p": 0.7}

    async def main():
        tasks = [asyncio.ensure_future(engine.strategy.generate(request(f"kept{i}", 150, **cut))) for i in range(4)]
        await engine.generate(request("begins", 5))
        await engine.update("interrupt")
        return await asyncio.gather(*tasks)

    before = engine.version
    results = engine.run(main())
    assert any([span.version for span in result.versions] == [before, before + 1] for result in results)
    for result in results:
        counts = torch.tensor(result.extras.kept.counts)
        sets = torch.tensor(result.extras.kept.ids).long().split(counts.tolist())
        assert len(sets) == 150
        with torch.no_grad():
            tokens = torch.tensor([[*PROMPT, *result.token_ids]])
            logits = {span.version: model_of(span.version)(tokens).logits[0, len(PROMPT) - 1 : -1] for span in result.versions}
        for span in result.versions:
            for at in range(span.start, span.stop):
                place = (sets[at] == result.token_ids[at]).nonzero().item()
                true = logits[span.version][at, sets[at]].log_softmax(-1)[place]
                assert abs(float(true) - result.logprobs[at]) < CLOSE


@real
def test_the_last_token_of_the_longest_text_is_sampled_too(engine):
    """SGLang itself reads no text that leaves fewer than seven places of its context."""
    (free,) = engine.run(engine.generate(request("long", 196, temperature=0)))
    (last,) = engine.run(engine.generate(request("last", 196, partial=free.token_ids[:195], temperature=0)))
    assert (last.finish_reason, last.token_ids) == ("length", free.token_ids[195:])


@real
def test_sleep_waits_for_what_runs_and_keeps_what_comes_waiting(engine):
    """The server itself ends when it is to release memory that is in use."""

    async def main():
        running = asyncio.ensure_future(engine.strategy.generate(request("running", 60)))
        while (await engine.strategy.stats()).running == 0:
            await asyncio.sleep(0)
        await engine.strategy.sleep()
        assert len((await running).token_ids) == 60
        late = asyncio.ensure_future(engine.strategy.generate(request("late", 5)))
        with pytest.raises(ValueError, match="sleeps"):
            await engine.strategy.activate_weights(WeightManifest(engine.version), "interrupt")
        assert not late.done()
        await engine.strategy.wake()
        return await late

    result = engine.run(main())
    assert result.versions[0].version == engine.version and distance(engine.version, result) < CLOSE


@real
def test_a_request_that_was_aborted_with_its_last_token_has_nothing_left_to_sample(engine):
    [result] = engine.run(engine.generate(request("whole", 3, partial=(70, 71, 72))))
    assert (result.finish_reason, len(result.token_ids)) == ("length", 0)


@real
def test_new_requests_never_meet_the_cache_of_older_weights(engine):
    async def main():
        await engine.generate(request("warm", 100))
        running = asyncio.ensure_future(engine.strategy.generate(request("running", 150)))
        while not (await engine.strategy.stats()).running:
            await asyncio.sleep(0.01)
        await engine.update("in_flight")
        fresh = await engine.generate(*(request(f"fresh{i}") for i in range(3)))
        await running
        return fresh

    for result in engine.run(main()):
        assert distance(engine.version, result) < CLOSE


@real
def test_a_request_that_an_update_overtakes_on_its_way_does_not_read_the_cache_of_older_weights(engine, monkeypatch):
    """It arrives with the key of the weights before."""
    strategy, posted = engine.strategy, []

    async def late(route, body, post=strategy._post):
        if route == "generate":
            posted.append(body)
            if len(posted) == 1:
                body["extra_key"] = str(engine.version - 1)
        return await post(route, body)

    async def main():
        await engine.generate(request("warm", 100))
        await engine.update("in_flight")
        monkeypatch.setattr(strategy, "_post", late)
        return await engine.generate(request("late"))

    (result,) = engine.run(main())
    assert result.versions[0].version == engine.version and distance(engine.version, result) < CLOSE
    assert [body["extra_key"] for body in posted] == [str(engine.version - 1), str(engine.version)]


@real
def test_a_refused_update_leaves_the_engine_as_it_was(engine):
    async def main():
        buckets = list(make_buckets(model_of(99).named_parameters(), 20_000))
        await engine.strategy.receive_bucket(99, buckets[0])
        with pytest.raises(ValueError, match="received and manifest differ"):
            await engine.strategy.activate_weights(manifest_of(99, buckets), "interrupt")
        return await engine.generate(request("after"))

    (result,) = engine.run(main())
    assert [span.version for span in result.versions] == [engine.version]
    assert distance(engine.version, result) < CLOSE


@real
def test_without_the_key_the_server_does_nothing_and_nobody_else_can_read_the_key(engine):
    """Any user of the machine may connect, and see the command lines of all processes."""
    server = engine.strategy._server
    key = server.headers["Authorization"].split()[1]
    routes = ("generate", "pause_generation", "abort_request", "update_weights_from_tensor", "release_memory_occupation")
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        answers = [client.post(f"/{route}", json={}) for route in routes] + [client.get("/server_info")]
        assert {answer.status_code for answer in answers} == {401}
        assert client.get("/server_info", headers=server.headers).status_code == 200
        wrong = {"Authorization": f"Bearer {key[::-1]}"}
        assert client.post("/abort_request", json={"rid": "nobody"}, headers=wrong).status_code == 401
    processes = [path for path in Path("/proc").glob("[0-9]*") if group_of(path) == server._process.pid]
    assert len(processes) > 1
    assert not [path for path in processes if key in (path / "cmdline").read_text(errors="replace")]
    assert key not in server._log.read_text(errors="replace")
    assert [path for path in server._folder.path.iterdir() if path.is_socket()], "its sockets go with its folder"
    assert server._folder.path.stat().st_mode & 0o077 == 0


def group_of(process):
    """A process's group; None if it is gone."""
    try:
        return os.getpgid(int(process.name))
    except ProcessLookupError:
        return None


@real
def test_memory_is_released_and_taken_again(engine):
    async def main():
        await engine.strategy.sleep()
        await engine.strategy.wake()
        return await engine.generate(request("awake"))

    assert distance(engine.version, engine.run(main())[0]) < CLOSE


@real
def test_a_wrong_argument_is_answered_with_the_end_of_the_log():
    with pytest.raises(EngineError, match=r"before it was ready(.|\n)*no-such-flag"):
        SGLangServer(PYTHON, {"model_path": "/nowhere", "no_such_flag": 1}, ["cpu"], 1, 100.0)


@real
def test_when_the_server_dies_whoever_waits_is_told(engine):
    """The last test of the module: it kills the server."""

    async def main():
        waiting = asyncio.ensure_future(engine.strategy.generate(request("waiting", 150)))
        while not (await engine.strategy.stats()).running:
            await asyncio.sleep(0.01)
        os.killpg(engine.strategy._server._process.pid, signal.SIGKILL)
        engine.strategy._server._process.wait()
        with pytest.raises(EngineError, match="is gone"):
            await waiting
        with pytest.raises(EngineError, match="is gone"):
            await engine.generate(request("late"))

    engine.run(main())


def test_a_request_that_is_aborted_while_the_server_queues_it_is_an_abort():
    """A retracted request waits in the server's queue; of one that is aborted there the server says less than of others."""
    strategy = SGLangInferStrategy.__new__(SGLangInferStrategy)
    strategy._tokenizer, strategy._stats = make_tokenizer(), EngineStats()
    meta = {"id": "r", "finish_reason": {"type": "abort", "message": "Abort in waiting queue"}, "completion_tokens": 0}
    result = strategy._result(request("r", 10), {"text": "", "output_ids": [], "meta_info": meta})
    assert (result.finish_reason, len(result.token_ids), result.versions) == ("abort", 0, [])
    assert strategy._stats.prefill_tokens == 0


@real
def test_arguments_are_checked_without_starting_or_importing_anything():
    check_installed(PYTHON)
    check_argument(PYTHON, "mem_fraction_static", 0.5)
    for name, message in (
        ("mem_fraction_statics", "is not an argument of SGLang's server; did you mean mem_fraction_static?"),
        ("model_path", "is not the user's to set: the model is"),
        ("tp_size", "write tensor_parallel_size"),
        ("admin_api_key", "each server has a random one"),
        ("custom_weight_loader", "weights are loaded by this project's"),
        ("startup_weight_load_mode", "SGLang has serial alone"),
        ("speculative_algorithm", "most probable token, whatever the temperature"),
        ("load_format", "must be one of safetensors, dummy"),
        ("sampling_mask_max_tokens", "it is the size of the vocabulary"),
    ):
        with pytest.raises(ValueError, match=message):
            check_argument(PYTHON, name, 1)


def test_an_interpreter_without_sglang_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no sglang"):
        check_installed(sys.executable)
    with pytest.raises(ValueError, match="no-python"):
        check_installed(str(tmp_path / "no-python"))


def test_arguments_become_flags():
    arguments = {
        "tp_size": 2,
        "disable_radix_cache": True,
        "enable_metrics": False,
        "lora_paths": ["a", "b"],
        "quantization": None,
    }
    assert command_line(arguments) == ["--tp-size", "2", "--disable-radix-cache", "--lora-paths", "a", "b"]


def test_a_missing_interpreter_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no-python"):
        SGLangServer(str(tmp_path / "no-python"), {}, ["cpu"], 1, 5.0)

"""Starts vLLM: the environment of its engine process, and the figures it reports. The engine's front end (`AsyncLLM`) lives in
the worker's process; scheduler and model are in one process below it, with tensor parallelism in several.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.core.configs.arguments import EngineArguments
from roll.core.errors import EngineError
from roll.platform.garbage import collection_paused
from roll.platform.temp_folder import TempFolder, temporary_files_in
from roll.platform.visible_devices import only
from roll.strategies.cpu_shims.vllm import absent_torchvision
from roll.strategies.infer.vllm.arguments import SEEING
from roll.strategies.infer.vllm.own_metrics import OwnMetrics

OWNER = "ROLL_ENGINE_OWNER"
"""Names the process without which the engine's are to end."""
_ERRORS = "errors.log"
"""File in the engine's folder with the errors of its processes: the error that ends one stands nowhere else."""
_RAISED = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Exit)): (.+)", re.MULTILINE)


@dataclass(slots=True)
class EngineFigures:
    """Counts of the engine since its start."""

    generated_tokens: int = 0
    prefill_tokens: int = 0
    """Computed; those found in the prefix cache are not among them."""
    preemptions: int = 0
    """Requests whose KV cache was given to others."""
    cache_use: float = 0.0
    """Share of the KV cache that is in use."""
    own: OwnMetrics | None = None
    """vLLM's own, once somebody has asked for them."""


def engine_folder() -> TempFolder:
    """A folder for the files that a killed engine would leave behind: sockets, and files by which its processes find each other.
    The names of sockets have little room (107 characters), so the user may choose a folder above with a shorter name."""
    above = os.environ.get("VLLM_RPC_BASE_PATH")
    return TempFolder("vllm", Path(above) if above else None)


def engine_environment(
    devices: Sequence[str], threads: int | None, arguments: Mapping[str, object], folder: Path
) -> dict[str, str]:
    """Variables of an engine on these torch devices. Logging is left alone if the user has set it."""
    env = temporary_files_in(folder) | {
        "VLLM_RPC_BASE_PATH": str(folder),
        OWNER: str(os.getpid()),
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "PYTHONWARNINGS": "ignore::FutureWarning",
        "VLLM_USE_V2_MODEL_RUNNER": "0",  # vLLM's other sampler reports log-probs without the temperature
    }
    if threads is not None:
        env |= dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), str(threads))  # drafts come from numba, which sets both
    if set(devices) == {"cpu"}:
        env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # engines would all be bound to the first cores
        if EngineArguments(dict(arguments)).devices_per_engine == 1:
            env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the model is in the scheduler's process, as on a GPU
        if SEEING.keys() <= arguments.keys():
            above = os.environ.get("PYTHONPATH")
            env["PYTHONPATH"] = os.pathsep.join([str(Path(absent_torchvision.__file__).parent), *([above] if above else [])])
        if arguments.get("enforce_eager"):
            env["TORCHDYNAMO_DISABLE"] = "1"  # a helper for log-probs is compiled all the same: 20 s at the first request
    else:
        env |= only(devices)
    if "VLLM_LOGGING_CONFIG_PATH" not in os.environ:
        env["VLLM_LOGGING_CONFIG_PATH"] = str(folder / "logging.json")
        Path(env["VLLM_LOGGING_CONFIG_PATH"]).write_text(json.dumps(_logging(env["VLLM_LOGGING_LEVEL"], folder)), "utf-8")
    return env


def _logging(level: str, folder: Path) -> dict[str, Any]:
    """Logs to stderr as vLLM does it, and errors to a file beside it."""
    stream = os.environ.get("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    console = {"class": "logging.StreamHandler", "level": level, "stream": stream, "formatter": "line"}
    errors = {"class": "logging.FileHandler", "level": "ERROR", "filename": str(folder / _ERRORS), "delay": True}
    line = {"format": "(vllm %(process)d) %(levelname)s %(asctime)s %(message)s"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": line},
        "handlers": {"console": console, "errors": errors},
        "loggers": {"vllm": {"handlers": ["console", "errors"], "level": level, "propagate": False}},
    }


def start_engine(arguments: Mapping[str, Any], environment: Mapping[str, str], figures: EngineFigures) -> Any:
    """An `AsyncLLM`, ready. `ValueError` if vLLM refuses an argument."""
    with _environment(environment), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # vLLM's own, at its import
        if "PYTHONPATH" in environment:
            absent_torchvision.stand_in()
        with collection_paused():
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM
            from vllm.v1.metrics.loggers import StatLoggerBase

            from roll.strategies.infer.vllm import no_processor  # noqa: F401

        class Counter(StatLoggerBase):  # type: ignore[misc]
            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None: ...

            def log_engine_initialized(self) -> None: ...

            def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **kwargs: Any) -> None:
                if scheduler_stats is not None:
                    figures.cache_use = scheduler_stats.kv_cache_usage
                if iteration_stats is not None:
                    figures.generated_tokens += iteration_stats.num_generation_tokens
                    figures.prefill_tokens += iteration_stats.prompt_token_stats.computed
                    figures.preemptions += iteration_stats.num_preempted_reqs
                if figures.own is not None:
                    figures.own.record(scheduler_stats, iteration_stats, *args, **kwargs)

        try:
            config = AsyncEngineArgs(**arguments)
            return AsyncLLM.from_engine_args(config, stat_loggers=[Counter])
        except (ValueError, TypeError) as error:
            raise ValueError(f"vLLM refuses its arguments: {refusal(error)}") from error
        except Exception as error:  # boundary: vLLM and its processes may raise anything
            why = _cause(Path(environment["VLLM_RPC_BASE_PATH"]) / _ERRORS) or f"{error} (its own messages are above)"
            raise EngineError(f"the vLLM engine did not start: {why}") from error


class ReadingEngine:
    """An engine that reads texts, and whose weights stay as they are."""

    def __init__(self, arguments: Mapping[str, Any], devices: Sequence[str], threads: int | None, **variables: str) -> None:
        """`variables`: of its environment, besides those of every engine."""
        self._folder = engine_folder()
        environment = engine_environment(devices, threads, arguments, self._folder.path) | variables
        self._engine: Any = start_engine(arguments, environment, EngineFigures())

    @contextmanager
    def errors(self) -> Iterator[Any]:
        """Yields the `AsyncLLM`. Turns vLLM's errors into `ValueError` (a refusal) or `EngineError`."""
        try:
            yield self._engine
        except ValueError as refused:
            raise ValueError(f"vLLM refuses the text: {refused}") from None
        except Exception as error:  # boundary: vLLM may raise anything
            raise EngineError(f"{type(error).__name__} in the vLLM engine: {error}") from error

    async def close(self) -> None:
        if self._engine.output_handler is not None:
            self._engine.output_handler.cancel()  # vLLM would report the end as a failure
        await asyncio.to_thread(self._engine.shutdown)
        self._engine = None  # while its own clean-up still finds the modules it needs
        self._folder.remove()


def refusal(error: Any) -> str:
    """Says an error in one line; one of pydantic's, whose text has several, with the whole input, by arguments and faults."""
    named = [[*each["loc"], each["msg"]] for each in error.errors()] if hasattr(error, "errors") else [[error]]
    return "; ".join(": ".join(map(str, each)) for each in named)


def _cause(errors: Path) -> str | None:
    """Returns the error of the engine's process that failed first; the others fail because of it."""
    try:
        found = _RAISED.search(errors.read_text("utf-8", errors="replace"))
    except FileNotFoundError:  # it was killed, or the user's configuration of vLLM's logging is another one
        return None
    return None if found is None else f"{found[1]}: {found[2]}"


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Changes the environment inside the block. Processes that are started there inherit the changes and ignore Ctrl-C, which the
    run handles: it ends its engines when it has saved. After the block the environment is as before, also where vLLM wrote to
    it."""
    before = dict(os.environ)
    os.environ.update(changes)
    deaf = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, deaf)
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)

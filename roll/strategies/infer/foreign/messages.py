"""Requests, results and errors on their way between a worker and an engine in another interpreter. Weights do not go this way: a
bucket is a memory file, of which the call has the path."""

from __future__ import annotations

from typing import Any

from roll.data.sample import VersionSpan
from roll.distributed.child import CallFailed
from roll.strategies.infer.interface import EngineClosed, EngineError, GenerateRequest, GenerateResult, SamplingParams

ERRORS: dict[str, type[Exception]] = {error.__name__: error for error in (ValueError, EngineError, EngineClosed)}
"""The errors that keep their type on the way."""


def error_of(failure: CallFailed) -> Exception:
    known = next((ERRORS[name] for name in failure.types if name in ERRORS), RuntimeError)
    return known(failure.text if failure.types[0] in (*ERRORS, "RuntimeError") else str(failure))


def request_of(plain: dict[str, Any]) -> GenerateRequest:
    sampling = plain["sampling"]
    sampling |= {name: tuple(sampling[name]) for name in ("stop_token_ids", "stop_strings")}
    lists = {name: tuple(plain[name]) for name in ("prompt_ids", "partial_ids")}
    return GenerateRequest(**(plain | lists | {"sampling": SamplingParams(**sampling)}))


def result_of(plain: dict[str, Any]) -> GenerateResult:
    return GenerateResult(**(plain | {"versions": [VersionSpan(*span) for span in plain["versions"]]}))

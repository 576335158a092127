"""The engines of other projects as parameters: name and interpreter, skipped where there is none."""

import importlib.util
import os
import sys

import pytest

SGLANG = os.environ.get("SGLANG_PYTHON")
VLLM_MARKS = [
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs requirements/vllm.txt"),
    pytest.mark.xdist_group("vllm"),
]
SGLANG_MARKS = [pytest.mark.skipif(SGLANG is None, reason="needs SGLANG_PYTHON (make test-sglang)"), pytest.mark.sglang]
ENGINES = [
    pytest.param("vllm", sys.executable, marks=VLLM_MARKS),
    pytest.param("sglang", SGLANG, marks=SGLANG_MARKS),
]

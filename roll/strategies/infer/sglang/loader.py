"""Our part of SGLang's own processes: it loads a version from where the worker says that its buckets lie. SGLang calls
`load_or_end` by its name (`custom_weight_loader`) in each process that has a part of the model."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from roll.transports.packed import view
from roll.transports.shared_buffers import mapped


def load_or_end(model: Any, named_tensors: Sequence[tuple[str, Tensor]]) -> None:
    """Does as `load`, and ends the server if it fails, because weights may be of two versions by then. By itself SGLang would
    answer with success whatever is returned, and take up to a minute to end after an error."""
    try:
        load(model, named_tensors)
    except BaseException:
        traceback.print_exc()  # into the log, whose end the worker shows
        sys.stderr.flush()
        os.killpg(0, signal.SIGKILL)  # the server is a process group of its own
        raise


def load(model: Any, named_tensors: Sequence[tuple[str, Tensor]]) -> None:
    """Replaces the model's weights. `named_tensors`: what `weights.ServerWeights.taken` says, as bytes on the server's device."""
    [(_, said)] = named_tensors
    where = json.loads(bytes(said.tolist()))
    with ExitStack() as loading, torch.no_grad():
        # A model may keep a tensor until another one of its layer comes, from another bucket: all stay open until it has all.
        blocks = [(loading.enter_context(mapped(bytes.fromhex(h), n, said.device)), named) for h, n, named in where["blocks"]]
        model.load_weights(_tensors(where["files"], blocks))


def _tensors(files: Sequence[str], blocks: Sequence[tuple[Tensor, Mapping[str, Any]]]) -> Iterator[tuple[str, Tensor]]:
    for content, named in blocks:
        for name, (code, shape, begin) in named.items():
            yield name, view(content, code, shape, begin)
    for path in files:
        with safe_open(path, framework="pt") as file:
            for name in file.offset_keys():  # a layer's weights one after another
                yield name, file.get_tensor(name)

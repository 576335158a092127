"""Weights that pass from one process to another in memory of the GPU: CUDA's part of lending, the rest of which is tested without
one (tests/transports/test_lending.py)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from roll.core.weights.bucket import WeightManifest
from roll.strategies.infer.sglang.weights import ServerWeights, as_tensors
from roll.transports.lending import Lent, LentBucket, LentCopies, borrowed, check

LENDER = """
import sys, torch
from roll.transports.lending import Lender
lender, device = Lender(), torch.device(sys.argv[1])
place = lender.begin(8 << 20)
generator = torch.Generator(device).manual_seed(5)
for version in range(2):
    lender.use(0)
    for dtype, shape in ((torch.bfloat16, (1000, 1000)), (torch.float32, (77,)), (torch.bfloat16, (3, 5, 7))):
        place(torch.randn(shape, device=device, generator=generator).to(dtype))
    print(lender.lent(["a", "b", "c"]).plain(), flush=True)
    sys.stdin.readline()
"""


SERVER = """
import base64, pickle, sys, torch
from roll.strategies.infer.sglang.loader import load
class Model:
    def load_weights(self, weights):
        self.weights = {name: tensor.clone() for name, tensor in weights}
[(name, said)] = pickle.loads(base64.b64decode(sys.argv[2]))
load(model := Model(), [(name, said.to(sys.argv[1]))])
print({name: (str(tensor.device.type), float(tensor.double().sum())) for name, tensor in model.weights.items()}, flush=True)
"""
"""What SGLang's process does with a version."""


@contextmanager
def lender(device: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", LENDER, device]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def lent_by(process: subprocess.Popen[str]) -> Lent:
    assert process.stdin is not None and process.stdout is not None
    return Lent(*ast.literal_eval(process.stdout.readline()))


def test_a_bucket_is_copied_from_device_to_device(device: str) -> None:
    """Expandable segments are those of the reader's allocator, and the lender's blocks are not torch's."""
    here, copies = torch.device(device), LentCopies()
    generator = torch.Generator(here).manual_seed(5)
    with lender(device) as process:
        for version in range(2):
            lent = lent_by(process)
            copies.receive(version, lent, here)
            for (name, kept), dtype in zip(
                copies.take(list(lent.seals)), (torch.bfloat16, torch.float32, torch.bfloat16), strict=True
            ):
                assert kept.device.type == here.type
                assert torch.equal(kept, torch.randn(kept.shape, device=here, generator=generator).to(dtype)), name
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        process.wait(60)
        with pytest.raises(ValueError, match="cannot be read"):
            copies.receive(2, lent, here)
    assert torch.ones(3, device=here).sum() == 3, "the refusal is not the next kernel's"


def test_a_lender_that_is_killed_leaves_its_reader_alive(device: str) -> None:
    here = torch.device(device)
    with lender(device) as process, borrowed(lent := lent_by(process), here) as views:
        check(lent, views)
        process.kill()
        process.wait(60)
        check(lent, views)  # the block goes with the last that has it open
    assert torch.ones(3, device=here).sum() == 3


def test_sglangs_process_reads_what_its_worker_has_copied(device: str) -> None:
    """From the lender's block into one of this process, which the server's opens when the lender is gone."""
    here, received = torch.device(device), ServerWeights([device])
    with lender(device) as process:
        lent = lent_by(process)
        received.receive_lent(1, LentBucket("/nowhere", ("a", "b", "c"), 7, 1, lent))
        with borrowed(lent, here) as views:
            expected = {name: (here.type, float(tensor.double().sum())) for name, tensor in views.items()}
    with received.taken(WeightManifest(1, ["a", "b", "c"], [7], 1)) as said:
        command = [sys.executable, "-c", SERVER, device, as_tensors(said)]
        assert ast.literal_eval(subprocess.run(command, capture_output=True, text=True, check=True).stdout) == expected
    assert torch.ones(3, device=here).sum() == 3

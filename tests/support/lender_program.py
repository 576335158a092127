"""A process that lends a bucket of two tensors until its input ends, by memory files in the place of a device's memory."""

LENDER = """
import sys, torch
from roll.transports.lending import Lender
from roll.transports.shared_buffers import FileBuffer
lender = Lender({"cpu": FileBuffer})
place = lender.begin(1 << 16)
lender.use(0)
for tensor in (torch.full((4, 1 << 10), 7.0, dtype=torch.bfloat16), torch.arange(5.0)):
    place(tensor)
print(lender.lent(["w", "b"]).plain(), flush=True)
sys.stdin.read()
"""

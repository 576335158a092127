"""How what a program has started is ended."""

import subprocess
import sys

MANY = 200
ENDS = f"""
import os, signal
from roll.envs.program import starter

looks, below = 0, starter.usage.below

def counted(process):
    global looks
    looks += process == os.getpid()
    return list(below(process))

starter.usage.below = counted
children = []
for _ in range({MANY}):
    if (child := os.fork()) == 0:
        signal.pause()
    children.append(child)
starter._end_all(children[0])
print(looks, len(counted(os.getpid())))
"""


def test_the_end_of_many_processes_does_not_take_a_look_at_all_for_each():
    said = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60, check=True).stdout
    looks, left = map(int, said.split())
    assert left == 0 and looks < MANY / 2

"""Which threads of an engine's process compute with a pool of torch's."""

import subprocess
import sys
from pathlib import Path

from programs import environment

COUNTS = """
import asyncio, os, sys
from concurrent.futures import ThreadPoolExecutor
import torch
from tiny_models import tiny_qwen2
from roll.strategies.infer.hf.strategy import HFInferStrategy
from roll.core.workers.infer_interface import GenerateRequest, SamplingParams
from roll.core.weights.bucket import manifest_of
from roll.transports.buckets import make_buckets

LARGE = dict(hidden_size=512, intermediate_size=1024)  # torch divides operations of 32,768 elements and more

async def threads_of_an_engine(threads):
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    torch.set_num_threads(threads)
    engine = HFInferStrategy(sys.argv[1], max_running_requests=2, max_length=320, threads=threads)
    torch.set_num_threads(1)
    for version, model in enumerate((first, second), 1):
        buckets = list(make_buckets(model.named_parameters(), 1 << 20))
        for bucket in buckets:
            await engine.receive_bucket(version, bucket)
        await engine.activate_weights(manifest_of(version, buckets), "in_flight")
        await engine.generate(GenerateRequest(str(version), (1, 2, 3), SamplingParams(max_new_tokens=3)))
    there = len(os.listdir("/proc/self/task"))
    await engine.close()
    return there

first, second = (tiny_qwen2(2000, seed=seed, **LARGE) for seed in (1, 2))
first.save_pretrained(sys.argv[1])
alone = asyncio.run(threads_of_an_engine(1))
print(asyncio.run(threads_of_an_engine(2)) - alone)
"""


def test_only_the_engines_own_thread_has_a_pool(tmp_path: Path) -> None:
    """Neither who loads the model nor who receives weights: with more pooled threads than cores each operation waits for some of
    them to wake up."""
    command = [sys.executable, "-c", COUNTS, str(tmp_path)]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert ended.stdout.split()[-1:] == ["1"], ended.stdout + ended.stderr

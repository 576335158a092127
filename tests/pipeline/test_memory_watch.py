"""Figures by role, and one warning a role."""

import math
from dataclasses import replace

from roll.distributed.process_memory import ProcessMemory
from roll.pipeline.memory_watch import MemoryWatch

START = ProcessMemory("host", 1, rss_mb=900.0, private_mb=500.0, free_mb=2000.0, device_peak_mb=None)


def test_a_metric_is_that_of_the_largest_worker_and_there_is_none_without_a_device():
    watch = MemoryWatch()
    trainers = {"actor_train-0": replace(START, device_peak_mb=70.0), "actor_train-1": replace(START, rss_mb=1200.0)}
    watch.add(0.0, {"driver": {"driver": START}, "actor_train": trainers, "rewards": {}})
    watch.add(10.0, {"driver": {"driver": replace(START, rss_mb=800.0)}, "actor_train": trainers, "rewards": {}})
    assert watch.metrics() == {
        "memory/driver_rss_mb": 800.0,
        "memory/actor_train_rss_mb": 1200.0,
        "memory/actor_train_device_peak_mb": 70.0,
    }
    assert watch.figures()["driver_rss_mb"] == {"last": 800.0, "peak": 900.0}


def leak(watch, role, name, pid=1, begin=0, host="host"):
    """An hour of readings, 1 MB each."""
    for number in range(begin, begin + 360):
        memory = replace(START, pid=pid, host=host, private_mb=500.0 + number)
        watch.add(10.0 * number, {role: {name: memory}})


def test_a_leak_is_warned_of_once_a_role():
    watch = MemoryWatch()
    leak(watch, "actor_train", "actor_train-1")
    assert watch.warn(rest_s=math.inf, step_s=30.0) == [
        "the memory of actor_train-1 has been growing for 40 min, by 360 MB/h, 3 MB a step: "
        "the machine's free 2000 MB will be full in 5.6 h"
    ]
    leak(watch, "actor_train", "actor_train-0", begin=360)
    assert watch.warn(rest_s=math.inf, step_s=30.0) == []
    assert len(watch.warnings) == 1


def test_a_worker_that_takes_another_ones_place_begins_anew():
    watch = MemoryWatch()
    leak(watch, "actor_infer", "actor_infer-0", pid=1)
    watch.add(3600.0, {"actor_infer": {"actor_infer-0": replace(START, pid=2)}})
    assert watch.warn(rest_s=math.inf, step_s=30.0) == []

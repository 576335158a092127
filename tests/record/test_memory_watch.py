"""Figures by role."""

from dataclasses import replace

from roll.core.distributed.machine import ProcessMemory
from roll.core.record.memory_watch import MemoryWatch

START = ProcessMemory(rss_mb=900.0, device_peak_mb=None)


def test_a_metric_is_that_of_the_largest_worker_and_there_is_none_without_a_device():
    watch = MemoryWatch()
    trainers = {"actor_train-0": replace(START, device_peak_mb=70.0), "actor_train-1": replace(START, rss_mb=1200.0)}
    watch.add({"driver": {"driver": START}, "actor_train": trainers, "rewards": {}})
    watch.add({"driver": {"driver": replace(START, rss_mb=800.0)}, "actor_train": trainers, "rewards": {}})
    assert watch.metrics() == {
        "memory/driver_rss_mb": 800.0,
        "memory/actor_train_rss_mb": 1200.0,
        "memory/actor_train_device_peak_mb": 70.0,
    }
    assert watch.figures()["driver_rss_mb"] == {"last": 800.0, "peak": 900.0}

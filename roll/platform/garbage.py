"""Python's searches for garbage: circles of objects, which counts of references do not free.

A driver holds a million objects for a thousand engines and makes hardly any circles, and its event loop stands still while Python
searches. So a driver searches among young objects alone: an object that has outlived one search is spared, until the process has
twice the memory.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from roll.core.distributed.machine import process_memory

YOUNG = 1_000
"""New objects between two searches among them."""
LEAST_MB = 1024.0
"""With less than twice this memory no spared object is searched."""


@contextmanager
def collection_paused() -> Iterator[None]:
    """For the imports of torch and transformers, which make half a million objects that all stay: looking among them for garbage
    takes a sixth of the time."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


@cache
def spare_what_is_there() -> None:
    """For a process that has started: spares all present objects from later searches, which take 0.3 s for them, in which a
    driver's event loop stands still. Done once: later garbage is not to be spared. (`gc.get_freeze_count` does not tell whether
    it was done: it counts what is spared, for 0.1 s.)"""
    gc.freeze()


@contextmanager
def searching_young_objects() -> Iterator[None]:
    """For a driver: within this, searches look at young objects alone. At its end all objects are searched once, so that a
    process that goes on keeps no garbage of it; the rest is spared."""
    usual = gc.get_threshold()
    gc.set_threshold(YOUNG)
    gc.callbacks.append(_spare)
    try:
        yield
    finally:
        gc.callbacks.remove(_spare)
        gc.set_threshold(*usual)
        search_all_objects()
        gc.freeze()


def search_all_objects() -> None:
    gc.unfreeze()
    gc.collect()


EVERY_S = 10.0


async def watch_growth() -> None:
    """Searches all objects where a driver has grown; runs as long as the run does."""
    growth = Growth()
    while True:
        growth.note(process_memory(with_children=False).rss_mb)
        await asyncio.sleep(EVERY_S)


class Growth:
    """Searches all objects where a process that searches among young ones has twice the memory that it had after the last time:
    its objects may be garbage."""

    def __init__(self) -> None:
        self._bound_mb = 2 * LEAST_MB

    def note(self, rss_mb: float) -> None:
        if _spare in gc.callbacks and rss_mb > self._bound_mb:
            search_all_objects()
            self._bound_mb = 2 * rss_mb


def _spare(phase: str, info: dict[str, int]) -> None:
    if phase == "stop":
        gc.freeze()

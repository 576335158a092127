"""A run from its configuration to its summary: the lock on its folder, the checks, the workers, whatever ends it.

`roll train` and scripts both start here; `RLVRPipeline` and `AgenticPipeline` assemble their kind of run.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from roll.core.configs.plain import to_mapping
from roll.core.configs.ppo import AUDITED, AUDITS, PPOConfig
from roll.core.configs.problems import Collector, ConfigError, Problem
from roll.core.configs.redact import visible
from roll.core.distributed.backend import Backend
from roll.core.distributed.device_locks import claimed
from roll.core.distributed.devices import Inventory
from roll.core.distributed.machine import this_machine
from roll.core.errors import Superseded, TrackerError
from roll.core.flow.custom_stage import CustomStage
from roll.core.flow.flow import Flow
from roll.core.pipeline.prepared import Prepared
from roll.core.pipeline.run import Run
from roll.core.record.callbacks import Callback
from roll.core.record.journal import write_atomically
from roll.core.record.live_files import SUMMARY, amend_summary, announce_running
from roll.core.record.run_lock import RunLock, cannot_write, lock_run
from roll.platform.local_backend import LocalBackend
from roll.platform.process_setup import DETERMINISTIC, set_defaults, set_deterministic
from roll.platform.watchdog import Watchdog
from roll.prepare.beginning import archive_previous
from roll.prepare.common_folders import not_common
from roll.prepare.outline import in_words_of, misplaced, outline
from roll.prepare.own_code import checked
from roll.prepare.own_stages import custom_stages
from roll.prompts.hub import with_fetched_models
from roll.prompts.image_folder import ImageFolder
from roll.prompts.paths import absolute, as_written
from roll.reports.printed_summary import print_summary

Config = TypeVar("Config", bound=PPOConfig)
P = TypeVar("P", bound=Prepared)


@dataclass(frozen=True, slots=True)
class Ready:
    """A run that has everything but its workers."""

    run: Run
    prepared: Prepared
    lock: RunLock

    def to_the_end(self) -> dict[str, Any]:
        """Runs to the end. Returns the summary, which is written whatever ends the run."""
        try:
            summary = asyncio.run(self.run.run())
            with suppress(Superseded):
                self.lock.check()
                print_summary(summary, self.prepared.run_dir)
            return summary
        except BaseException as error:
            status = "interrupted" if isinstance(error, KeyboardInterrupt | asyncio.CancelledError) else "failed"
            summary = {"status": status, "reason": " ".join(f"{type(error).__name__}: {error}".split())}
            with suppress(Superseded):
                self.lock.check()
                amend_summary(self.prepared.run_dir, summary)
            if isinstance(error, OSError):  # a full disk also stops the handler of the error that ended the run
                return summary
            raise


class Pipeline(ABC, Generic[Config, P]):
    kind: ClassVar[type[Run]]

    def __init__(
        self, config: Config, *, local: bool = False, stages: Sequence[CustomStage] = (), callbacks: Sequence[Callback] = ()
    ) -> None:
        """`local`: in this process, without Ray. `stages`, `callbacks`: besides those that `config.flow` names. Raises
        `ValueError` for a callback with a method that is never called."""
        self.config = self._given = config
        self.local = local
        self._stages = tuple(stages)
        self._callbacks = tuple(map(checked, callbacks))
        self._ready: Ready | None = None
        self._stops = False
        """True once another thread than the run's has interrupted it."""

    def run(self) -> dict[str, Any]:
        """Runs to the end and returns the summary, which is also in summary.json. Raises `ConfigError` before any worker starts.
        Where an event loop runs already (a notebook), the run has a thread of its own, and Ctrl-C still ends it in order."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._run()
        with ThreadPoolExecutor(1, "run") as thread:
            summary = thread.submit(self._run)
            while True:
                try:
                    return summary.result()
                except KeyboardInterrupt:
                    if summary.done():
                        raise
                    self._interrupt()

    async def run_beside(self) -> dict[str, Any]:
        """`run` on a thread of its own, awaited: the caller's event loop goes on. Cancelled, it ends the run in order first."""
        with ThreadPoolExecutor(1, "run") as thread:
            ended = asyncio.get_running_loop().run_in_executor(thread, self._run)
            try:
                return await asyncio.shield(ended)
            except asyncio.CancelledError:
                while not ended.done():
                    self._interrupt()
                    with suppress(asyncio.CancelledError):
                        await asyncio.wait({ended})
                ended.exception()  # asyncio reports errors that are never read
                raise

    def outline(self) -> Flow:
        """Returns the flow, for inspection. Raises `ConfigError` for stages of the user's own that cannot be made or placed."""
        collect = Collector()
        own = in_words_of(self.kind, self.config, (*custom_stages(self.config.flow, collect), *self._stages))
        collect.add(misplaced(self.kind, self.config, own))
        collect.raise_if_any()
        return outline(self.kind, self.config, own)

    @contextmanager
    def ready(self, lock: RunLock) -> Iterator[Ready]:
        """Raises `ConfigError` with every problem that can be known before the first worker starts. The lock is held before
        anything is read for a resumption, or moved."""
        set_defaults(this_machine())
        resolved = absolute(self._given)
        config = self.config = with_fetched_models(resolved)
        if config.deterministic:
            set_deterministic()
        watchdog, claims = Watchdog(), ExitStack()
        backend = self._backend(watchdog)
        try:
            for line in claims.enter_context(self._claims()):
                print(visible(line))
            inventory = backend.devices(config.num_nodes, config.num_gpus_per_node)
            prepared = self._prepared(inventory, lock)
            written = as_written(*map(to_mapping, (prepared.config, resolved, self._given)))
            prepared = replace(prepared, written=written)
            backend.reserve(_devices_named(prepared.config), _who(config))
            with _room(prepared):
                run = self._made(prepared, inventory, backend)
                if problems := list(not_common(prepared, backend)):
                    raise ConfigError(problems)
            announced = announce_running(prepared.run_dir, lock.owner.started)
            why = f"the driver (process {os.getpid()}) was killed, or crashed; what it wrote last is on its standard error"
            watchdog.amends(prepared.run_dir / SUMMARY, announced, {"status": "failed", "reason": why}, f"error: {why}")
            self._ready = Ready(run, prepared, lock)
            yield self._ready
        except OSError as error:
            if error.errno is None:  # of a connection, or a deadline: no disk has answered
                raise
            raise ConfigError([cannot_write(config, error)]) from error
        finally:
            if self._ready is None:  # else the run has ended it
                asyncio.run(backend.shutdown())
            self._ready = None
            watchdog.dismiss()
            claims.close()

    # -- what a kind of run gives ----------------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self, inventory: Inventory) -> P:
        """Raises `ConfigError`."""

    # -- how -------------------------------------------------------------------------------------------------------------

    def _interrupt(self) -> None:
        """Called on another thread than the run's."""
        self._stops = True
        if self._ready is not None:
            self._ready.run.interrupt_from_thread()

    def _run(self) -> dict[str, Any]:
        with closing(lock_run(self.config)) as lock, self.ready(lock) as ready:
            if self._stops:
                raise KeyboardInterrupt
            return ready.to_the_end()

    def _prepared(self, inventory: Inventory, lock: RunLock) -> P:
        """Raises `ConfigError`."""
        prepared = self.prepare(inventory)
        stages = in_words_of(self.kind, self.config, (*prepared.stages, *self._stages))
        callbacks = (*prepared.callbacks, *self._callbacks)
        if problems := list(misplaced(self.kind, self.config, stages)):
            raise ConfigError(problems)
        self._audited(prepared)
        for line in prepared.checkpoint.skipped if prepared.checkpoint is not None else ():
            print(f"a checkpoint cannot be resumed from, and is left out: {visible(line)}")
        return replace(prepared, lock=lock, stages=stages, callbacks=callbacks)

    def _audited(self, prepared: P) -> None:
        """Raises `ConfigError` where audits are required and something is wrong with them."""
        config: Any = prepared.config
        if config.audit == "required":
            from roll.envs.kept_audits import refusals

            if problems := list(refusals(config)):
                raise ConfigError(problems)

    def _show_audits(self, prepared: P) -> None:
        """Writes kept audits into the run's folder, for its page. Raises `ConfigError`."""
        config: Any = prepared.config
        if config.explores and Path(AUDITS).is_dir():
            from roll.envs.kept_audits import shown

            write_atomically(prepared.run_dir / AUDITED, json.dumps(shown(config)).encode())

    def _made(self, prepared: P, inventory: Inventory, backend: Backend) -> Run:
        """Raises `ConfigError`."""
        config = self.config
        try:
            run = self.kind(prepared.config, prepared, inventory, backend)
            self._show_audits(prepared)
            return run
        except TrackerError as error:
            message = str(error).removeprefix("track_with: ")
            raise ConfigError([Problem("track_with", config.track_with, message, "leave the tracker out")]) from error
        except ValueError as error:  # the journals differ from what the checkpoint recorded
            raise ConfigError([_cannot_resume(config, str(error))]) from error
        except (LookupError, TypeError, AttributeError) as error:  # a checkpoint is text that anybody may have edited
            if prepared.checkpoint is None:
                raise
            message = f"{prepared.checkpoint.path} has contents that this version did not write: {type(error).__name__}: {error}"
            raise ConfigError([_cannot_resume(config, message)]) from error

    def _claims(self) -> AbstractContextManager[list[str]]:
        """Claims accelerators of this machine, and yields remarks on them; a cluster's are reserved with Ray."""
        config, there = self.config, len(this_machine().accelerators)
        joined = not self.local and os.environ.get("RAY_ADDRESS", "local") != "local"
        used = [] if joined or not there else _devices_named(config)
        if not used:
            return nullcontext([])
        enough = config.num_gpus_per_node
        return claimed(_who(config), there, [device for device in used if device < (enough or there)], enough)

    def _backend(self, watchdog: Watchdog) -> Backend:
        if self.local:
            return LocalBackend()
        from roll.platform.ray_backend import RayBackend

        config = self.config
        environment = {name: os.environ[name] for name in DETERMINISTIC if config.deterministic}
        return RayBackend(None, environment, watchdog, Path(config.run_dir) / "ray_logs", config.waits_for_devices_s)


def _who(config: PPOConfig) -> str:
    """Returns the description of this run for other runs."""
    return f"{config.run_dir} (mode {config.mode}, process {os.getpid()} on {platform.node()})"


def _devices_named(config: PPOConfig) -> list[int]:
    """Returns the devices of all roles, and of models that judge; none where they cannot be read, which is an error soon."""
    judging = [each for reward in config.reward_configs.values() for each in reward.models.values()]
    with suppress(ValueError):
        return sorted({device for each in (*config.roles().values(), *judging) for device in each.devices})
    return []


@contextmanager
def _room(prepared: Prepared) -> Iterator[None]:
    """Moves an earlier run of this name aside, unless explorers may be at work on it; and back if the start is refused after all,
    as by a tracker. Raises `ConfigError`."""
    config, run_dir = prepared.config, prepared.run_dir
    is_new = not run_dir.exists()
    aside = archive_previous(run_dir) if config.mode != "train" and not prepared.continues else None
    if aside is not None:
        print(f"the earlier run of this name was moved to {aside}")
        if config.images_dir is not None:  # those of this one's rows are there already
            ImageFolder(Path(config.images_dir)).take_in(aside / "images")
    begun = not prepared.continues and (run_dir / "config.yaml").exists()
    if begun and config.mode == "train" and config.resume_from_checkpoint is False:
        message = f"{run_dir} holds a run that has begun, and explorers may be at work on it"
        fix = "auto, to go on with it, or another exp_name"
        raise ConfigError([Problem("resume_from_checkpoint", False, message, fix)])
    try:
        yield
    except (ConfigError, OSError):
        if aside is not None or (is_new and not (run_dir / "explorers").exists()):
            shutil.rmtree(run_dir, ignore_errors=True)
        if aside is not None:
            with suppress(OSError):
                aside.rename(run_dir)
                print(f"it was moved back to {run_dir}")
        raise


def _cannot_resume(config: PPOConfig, message: str) -> Problem:
    fix = "resume from another checkpoint, or start over with false"
    return Problem("resume_from_checkpoint", config.resume_from_checkpoint, " ".join(message.split()), fix)

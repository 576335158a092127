"""Checkpoints: complete or absent.

`checkpoints/step-N/` holds all state of a run: the trainer's files, the pipeline's state (accounts, data cursor, staleness
figures, positions in the journals) and the buffered groups, or a copy of the database that has them. It is written aside,
described by a manifest with a hash of every file, synced, and renamed, if the run still owns its folder; a folder without a valid
manifest is never resumed from.

`SHAPE` is the shape of `pipeline.json`, the state needed to resume. A file of another shape is refused before anything starts.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roll.core.configs.plain import JsonObject
from roll.core.configs.ppo import PPOConfig
from roll.core.errors import CheckpointError, Superseded
from roll.core.record.checkpoint_fits import check_fits
from roll.core.record.group_log import GROUPS
from roll.core.record.journal import check_prefix, sync
from roll.core.record.manifest import MANIFEST, is_count, parsed, read_json, read_manifest, seal, shown, verify
from roll.core.record.run_lock import RunLock
from roll.core.weights.folder_files import share_like, write_index

STATE = "pipeline.json"
BUFFER = "buffer.jsonl"
DATABASE = "database.db"
"""A copy of the database, where groups lie in one."""
TRAINER = "trainer"
MODEL = f"{TRAINER}/model"
CRITIC = "critic"
_NAME = re.compile(r"step-(\d{1,18})")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    path: Path
    step: int
    state: JsonObject
    buffer: list[JsonObject]
    skipped: tuple[str, ...] = ()
    """Newer checkpoints that cannot be resumed from, each with the reason."""

    def is_of(self, run_dir: Path) -> bool:
        """True if the run of the folder made it. `checkpoints`, or one of them, may be a link to another disk."""
        path, own = self.path.resolve(), run_dir / "checkpoints"
        named_there = self.path.parent.resolve() == own.resolve()
        return named_there or (own / f"step-{self.step}").resolve() == path or run_dir.resolve() in path.parents

    @property
    def trainer(self) -> Path:
        return self.path / TRAINER

    @property
    def critic(self) -> Path:
        """The critic's folder; it exists only if a critic was trained."""
        return self.path / CRITIC

    @property
    def model(self) -> Path:
        """The weights as a Hugging Face model folder."""
        return self.path / MODEL

    @property
    def database(self) -> Path:
        """The copy of the database, where groups lie in one."""
        return self.path / DATABASE

    @property
    def adapters(self) -> Path:
        """The adapters' folder; it exists only if adapters were trained (LoRA)."""
        return self.trainer / "adapter"


Check = Callable[[Checkpoint], None]
"""Check of a checkpoint; raises `CheckpointError`."""
Spares = Callable[[list[int]], Collection[int]]
"""Given the steps of checkpoints that are old enough to be deleted, returns those that stay."""


class CheckpointStore:
    def __init__(self, root: Path, keep: int = 0, lock: RunLock | None = None, spares: Spares = lambda old: ()) -> None:
        """`keep`: how many of the newest checkpoints stay, 0 for all. `lock`: that of the folder's run; a reader needs none."""
        self.root = root
        self._keep = keep
        self._spares = spares
        self._lock = lock

    def steps(self) -> list[int]:
        """Returns the steps of all checkpoint folders with a manifest, oldest first."""
        return [step for step in self._folders() if (self.root / f"step-{step}" / MANIFEST).is_file()]

    def begin(self, step: int) -> Path:
        """Returns an empty folder to write a checkpoint into; the trainer writes to its `TRAINER` part, a critic to `CRITIC`."""
        self._check_owner()
        partial = self._partial(step)
        # Folders of other runs were left by runs that were killed.
        if self._lock is not None:
            for left in self.root.glob(".step-*"):
                if not left.name.endswith(f".{self._lock.token}.partial"):
                    _remove(left)
        _remove(partial)
        (partial / TRAINER).mkdir(parents=True)
        return partial

    def commit(self, step: int, state: dict[str, object], buffer: list[dict[str, object]]) -> Path:
        """Completes the checkpoint started by `begin`; from here on it exists. Older ones beyond `keep` are removed.

        Raises `Superseded` if another run owns the folder now."""
        partial, final, replaced = self._partial(step), self.root / f"step-{step}", self.root / f".step-{step}.replaced"
        try:
            (partial / STATE).write_text(json.dumps(state, indent=1))
            (partial / BUFFER).write_text("".join(json.dumps(row) + "\n" for row in buffer))
            for model in partial.glob("*/model"):
                write_index(model)
            share_like(partial / STATE, partial)
            seal(partial, step, self._lock.token if self._lock is not None else 0)
        except FileNotFoundError:
            self._check_owner()  # another run that took the folder over has removed what this one began
            raise
        self._check_owner()
        _remove(replaced)
        if final.is_symlink() or final.exists():
            final.rename(replaced)
        partial.rename(final)
        self._sync_root()
        _remove(replaced)
        self.prune()
        return final

    def prune(self) -> None:
        """Removes the checkpoints that need not stay."""
        old = self.steps()[: -self._keep] if self._keep else []
        for step in sorted({*old} - {*self._spares(old)}):
            _remove(aside := self.root / f".step-{step}.deleted")  # where a kill cuts this, the next `begin` goes on
            _remove((self.root / f"step-{step}").rename(aside))  # half a folder must not look like a checkpoint

    def set_aside_after(self, step: int) -> None:
        """Renames the checkpoints of later steps. A run that goes on from an older one takes another course: its journals no
        longer match those recorded by the later ones, and nothing may resume from them by itself."""
        later = [found for found in self._folders() if found > step]
        for found in later:
            aside = self.root / f"rolled-back-step-{found}"
            _remove(aside)
            (self.root / f"step-{found}").rename(aside)
        if later:
            sync(self.root)

    def resolve(self, requested: bool | str, check: Check | None = None) -> Checkpoint | None:
        """Finds the checkpoint that `resume_from_checkpoint` names: false, true (the newest good one, which must exist), "auto"
        (the newest good one; None where there is no checkpoint, good or bad) or a path. `check`: further condition of a good one.
        Raises `CheckpointError`."""
        if requested is False:
            return None
        if requested is not True and requested != "auto":
            return self.load(Path(requested), check)
        skipped: list[str] = []
        for step in reversed(self._folders()):
            try:
                return replace(_read(self.root / f"step-{step}", check), skipped=tuple(skipped))
            except CheckpointError as error:
                skipped.append(f"step-{step}: {error}")
        if skipped:
            advice = "restore one of them from a copy, name another checkpoint, or start over with false"
            raise CheckpointError(f"no checkpoint in {self.root} can be resumed from ({'; '.join(skipped)}): {advice}")
        if requested is True:
            raise CheckpointError(f"there is no complete checkpoint in {self.root}")
        return None

    def load(self, path: Path, check: Check | None = None) -> Checkpoint:
        """Reads and verifies a checkpoint."""
        try:
            return _read(path, check)
        except CheckpointError as error:
            raise self._refusal(path, str(error)) from error

    def model(self, path: Path) -> tuple[int, Path]:
        """Returns the step of a checkpoint, and the folder of its model, which is verified; nothing else of it is read. Raises
        `CheckpointError`."""
        try:
            manifest = read_manifest(path)
            verify(path, manifest, f"{MODEL}/")
            if not (path / MODEL).is_dir():
                raise CheckpointError(f"it has no folder {MODEL}")
        except (CheckpointError, OSError) as error:
            raise self._refusal(path, str(error)) from error
        return manifest.step, path / MODEL

    def _refusal(self, path: Path, why: str) -> CheckpointError:
        root = path.parent if path.parent.is_dir() else self.root
        others = [step for step in CheckpointStore(root).steps() if root / f"step-{step}" != path]
        advice = f"the last complete one is {root / f'step-{others[-1]}'}" if others else "there is no complete one beside it"
        return CheckpointError(f"{path} is not a complete checkpoint: {why}; {advice}")

    def _folders(self) -> list[int]:
        """Returns the steps of all folders named like checkpoints, whatever they hold, oldest first."""
        found = [_NAME.fullmatch(path.name) for path in self.root.glob("step-*") if path.is_dir()]
        return sorted({int(match[1]) for match in found if match and match[0] == f"step-{int(match[1])}"})

    def _partial(self, step: int) -> Path:
        """Returns a folder of this run alone: one that was superseded may still be writing."""
        return self.root / (f".step-{step}.{self._lock.token}.partial" if self._lock is not None else f".step-{step}.partial")

    def _check_owner(self) -> None:
        if self._lock is None:
            return
        self._lock.check()
        for step in self.steps():
            with suppress(CheckpointError, OSError):
                token = read_manifest(self.root / f"step-{step}").token
                if token > self._lock.token:
                    raise Superseded(
                        f"{self.root / f'step-{step}'} was written by a later run: this one may not write there any more"
                    )

    def _sync_root(self) -> None:
        """Syncs the folder, and those above it, which may be new, too."""
        sync(self.root)
        for above in self.root.absolute().parents:
            with suppress(OSError):  # a folder that we may not read existed before this run
                sync(above)


def _read(path: Path, check: Check | None) -> Checkpoint:
    """Reads a checkpoint. Raises `CheckpointError`, with the reason alone."""
    try:
        manifest = read_manifest(path)
        named = _NAME.fullmatch(path.name)
        if named and int(named[1]) != manifest.step:
            raise CheckpointError(f"its {MANIFEST} is of step {manifest.step}")
        verify(path, manifest)
        if missing := [name for name in (STATE, BUFFER) if name not in manifest.files]:
            raise CheckpointError(f"file {missing[0]} is not in {MANIFEST}")
        if not any(name.startswith(f"{TRAINER}/") for name in manifest.files):
            raise CheckpointError(f"there is no file of {TRAINER}/ in {MANIFEST}")
        state = read_json(path / STATE)
        buffer = [parsed(line, BUFFER) for line in (path / BUFFER).read_bytes().split(b"\n") if line]
        found = Checkpoint(path, manifest.step, state, buffer)
        if check is not None:
            check(found)
    except OSError as error:
        raise CheckpointError(f"{error.filename}: {error.strerror}") from error
    return found


def _remove(path: Path) -> None:
    """Removes a file or a folder; of a link it removes the link alone."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


COUNT = "a whole number from 0"
COUNTS = "counts by name"
LAGS = "counts by lag"
TEXTS = "texts"
TEXT = "a text"
NUMBER = "a number"
OBJECT = "an object"
JOURNALS = ("groups", "samples", "metrics")
SHAPE: dict[str, object] = {
    "run": TEXT,
    "admission": {"next_group_id": COUNT, "trained": COUNT, "reused": COUNT, "dropped": COUNTS},
    "cursor": {"seed": COUNT, "served": COUNTS, "returned": TEXTS},
    "record": {
        "step": COUNT,
        **dict.fromkeys(JOURNALS, COUNT),
        "digests": dict.fromkeys(JOURNALS, TEXT),
        "staleness": {"samples": LAGS, "tokens": LAGS, "bound": COUNT},
    },
    "advantages": {"kl_coef": NUMBER},
}
"""Required entries; there may be more."""
MOMENTS = {"count": COUNT, "mean": NUMBER, "squares": NUMBER}
"""The reward moments of each domain, kept where rewards are normalised over all rewards so far."""


def check_state(state: Any, step: int) -> None:
    """Raises `CheckpointError`. `step`: that of the manifest."""
    for problem in _problems(state, SHAPE, "pipeline.json"):
        raise CheckpointError(problem)
    record = state["record"]
    if record["step"] != step:
        raise CheckpointError(f"pipeline.json is of step {record['step']}, the manifest of step {step}")
    rewards = state["advantages"].get("rewards", {})
    if not isinstance(rewards, dict):
        raise CheckpointError(f"pipeline.json: advantages.rewards is {shown(rewards)}, not {OBJECT}")
    for name, moments in rewards.items():
        for problem in _problems(moments, MOMENTS, f"pipeline.json: advantages.rewards.{shown(name)}"):
            raise CheckpointError(problem)


def resumable(store: CheckpointStore, config: PPOConfig) -> Checkpoint | None:
    """Returns the checkpoint that `resume_from_checkpoint` names, if the run can go on from it: with its ended groups at
    that time, if it is the run's own. Raises `ValueError`."""

    def check(found: Checkpoint) -> None:
        check_state(found.state, found.step)
        run_dir, record = store.root.parent, found.state["record"]
        if found.is_of(run_dir):
            try:
                check_prefix(run_dir / GROUPS, record["groups"], record["digests"]["groups"])
            except ValueError as error:
                raise CheckpointError(str(error)) from error

    checkpoint = store.resolve(config.resume_from_checkpoint, check)
    if checkpoint is not None:
        check_fits(checkpoint, config)
    return checkpoint


def _problems(value: object, shape: Any, name: str) -> Iterator[str]:
    if isinstance(shape, str):
        if not _is(shape, value):
            yield f"{name} is {shown(value)}, not {shape}"
    elif not isinstance(value, dict):
        yield f"{name} is {shown(value)}, not {OBJECT}"
    else:
        separator = "." if ": " in name else ": "
        for key, inner in shape.items():
            if key not in value:
                yield f"{name} lacks {key}"
            else:
                yield from _problems(value[key], inner, f"{name}{separator}{key}")


def _is(shape: str, value: Any) -> bool:
    if shape == COUNT:
        return is_count(value)
    if shape == NUMBER:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    if shape == TEXT:
        return isinstance(value, str)
    if shape == TEXTS:
        return isinstance(value, list) and all(isinstance(text, str) for text in value)
    counts = isinstance(value, dict) and all(map(is_count, value.values()))
    return counts and (shape == COUNTS or all(key.isdecimal() and len(key) < 10 for key in value))

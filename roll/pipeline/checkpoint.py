"""Checkpoints: complete or absent.

`checkpoints/step-N/` holds what the next step needs: the trainer's files, the pipeline's state (accounts, data cursor, staleness
figures, positions in the journals) and the buffered groups. It is written aside, described by a manifest with a hash of every
file, synced, and renamed; a folder without a valid manifest is never resumed from.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
STATE = "pipeline.json"
BUFFER = "buffer.jsonl"
TRAINER = "trainer"
CRITIC = "critic"
_NAME = re.compile(r"step-(\d+)")


class CheckpointError(ValueError):
    """A checkpoint that cannot be resumed from; says why, and what can."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    path: Path
    step: int
    state: dict[str, Any]
    buffer: list[dict[str, Any]]

    @property
    def trainer(self) -> Path:
        return self.path / TRAINER

    @property
    def critic(self) -> Path:
        """Only there if a critic was trained."""
        return self.path / CRITIC

    @property
    def model(self) -> Path:
        """The weights as a Hugging Face model folder."""
        return self.trainer / "model"

    @property
    def adapters(self) -> Path:
        """Only there if adapters were trained (LoRA)."""
        return self.trainer / "adapter"


class CheckpointStore:
    def __init__(self, root: Path, keep: int = 0, spared: int | None = None) -> None:
        """`keep`: how many of the newest checkpoints stay, 0 for all. `spared`: the step of one that stays besides them: engines
        that start anew begin with its weights."""
        self.root = root
        self._keep = keep
        self._spared = spared

    def steps(self) -> list[int]:
        """Of all checkpoint folders with a manifest, oldest first."""
        found = [_NAME.fullmatch(path.name) for path in self.root.glob("step-*") if (path / MANIFEST).is_file()]
        return sorted(int(match[1]) for match in found if match)

    def begin(self, step: int) -> Path:
        """An empty folder to write a checkpoint into; the trainer writes to its `TRAINER` part, a critic to `CRITIC`."""
        partial = self.root / f".step-{step}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        (partial / TRAINER).mkdir(parents=True)
        return partial

    def commit(self, step: int, state: dict[str, Any], buffer: list[dict[str, Any]]) -> Path:
        """Completes what `begin` began; from here on the checkpoint exists. Older ones beyond `keep` are removed."""
        partial = self.root / f".step-{step}.partial"
        (partial / STATE).write_text(json.dumps(state, indent=1))
        (partial / BUFFER).write_text("".join(json.dumps(row) + "\n" for row in buffer))
        files = sorted(path for path in partial.rglob("*") if path.is_file())
        hashes = {str(path.relative_to(partial)): _sha256(path) for path in files}
        (partial / MANIFEST).write_text(json.dumps({"step": step, "files": hashes}, indent=1))
        for path in [*files, partial / MANIFEST, partial]:
            _sync(path)
        final = self.root / f"step-{step}"
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        _sync(self.root)
        if self._keep:
            for old in [step for step in self.steps()[: -self._keep] if step != self._spared]:
                (self.root / f"step-{old}" / MANIFEST).unlink()  # first: half a folder must not look complete
                shutil.rmtree(self.root / f"step-{old}")
        return final

    def set_aside_after(self, step: int) -> None:
        """Renames the checkpoints of later steps. A run that goes on from an older one takes another course: its journals no
        longer are what the later ones recorded, and nothing may resume from them by itself."""
        for later in self.steps():
            if later > step:
                aside = self.root / f"rolled-back-step-{later}"
                shutil.rmtree(aside, ignore_errors=True)
                (self.root / f"step-{later}").rename(aside)

    def resolve(self, wish: bool | str) -> Checkpoint | None:
        """What `resume_from_checkpoint` names: false, true (the newest, which must be there), "auto" (the newest if there is one)
        or a path. Raises `CheckpointError`."""
        if wish is False:
            return None
        if wish is True or wish == "auto":
            steps = self.steps()
            if steps:
                return self.load(self.root / f"step-{steps[-1]}")
            if wish == "auto":
                return None
            raise CheckpointError(f"there is no complete checkpoint in {self.root}")
        return self.load(Path(wish))

    def load(self, path: Path) -> Checkpoint:
        """Reads and verifies a checkpoint."""
        try:
            manifest = json.loads((path / MANIFEST).read_text())
            for name, digest in manifest["files"].items():
                if not (path / name).is_file():
                    raise CheckpointError(f"file {name} is missing")
                if _sha256(path / name) != digest:
                    raise CheckpointError(f"file {name} is not what was saved (hash differs)")
        except FileNotFoundError:
            raise self._refusal(path, f"it has no {MANIFEST}" if path.is_dir() else "there is no such folder") from None
        except (CheckpointError, json.JSONDecodeError, KeyError) as error:
            raise self._refusal(path, str(error)) from error
        rows = (path / BUFFER).read_text().splitlines()
        state = json.loads((path / STATE).read_text())
        return Checkpoint(path, manifest["step"], state, [json.loads(row) for row in rows])

    def _refusal(self, path: Path, why: str) -> CheckpointError:
        root = path.parent if path.parent.is_dir() else self.root
        others = [step for step in CheckpointStore(root).steps() if root / f"step-{step}" != path]
        advice = f"the last complete one is {root / f'step-{others[-1]}'}" if others else "there is no complete one beside it"
        return CheckpointError(f"{path} is not a complete checkpoint: {why}; {advice}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

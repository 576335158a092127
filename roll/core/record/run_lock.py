"""One run at a time writes into a folder `<output_dir>/<exp_name>`.

The driver holds a lock on `<output_dir>/.<exp_name>.lock`: beside the folder, so that the lock stays when the folder is moved
aside. The lock is a POSIX record lock: it ends with its process, however that ends, and NFS has it too. Its holder never opens
the lock file again, for closing a second descriptor would give the lock up; it removes it if nothing came of a run that is new.

`.<exp_name>.owner.json` says who holds the lock, and holds the run's token: a number that grows with every holder. A lock can be
lost without notice (a network file system that was away, a virtual machine that slept), so the holder compares the tokens before
each checkpoint becomes valid: a writer that was superseded cannot commit.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import ConfigError, Problem
from roll.core.errors import Superseded

logger = logging.getLogger(__name__)

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of a file system without locks."""


class RunInUse(RuntimeError):
    """Another run holds the folder; says which."""


@dataclass(frozen=True, slots=True)
class Owner:
    token: int
    id: str
    """Unlike the token it is unique even where locks do not work."""
    host: str
    pid: int
    started: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.started}"


class RunLock:
    """Held from its creation to `close`. Raises `RunInUse`, or `OSError` if the lock file cannot be made."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._files: list[int] = []
        self._made: list[Path] = [each for place in _places(run_dir) for each in _missing(place)]
        """Folders and files that were not there before, the innermost first."""
        try:
            for place in _places(run_dir):
                self._lock(place)
        except BaseException:
            self._made.clear()  # it may be another's
            self.close()
            raise
        self._owner_files = [_owner_file(place) for place in _places(run_dir)]
        earlier = [owner.token for path in self._owner_files if (owner := read_owner(path)) is not None]
        # The clock keeps tokens growing where somebody removed the file.
        token = max([int(time.time()), *(last + 1 for last in earlier)])
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        self.owner = Owner(token, uuid.uuid4().hex, socket.gethostname(), os.getpid(), started)
        for path in self._owner_files:
            _write(path, json.dumps(asdict(self.owner)))

    @property
    def token(self) -> int:
        return self.owner.token

    def check(self) -> None:
        """Raises `Superseded` if somebody else took the folder. A missing owner file proves nothing."""
        for path in self._owner_files:
            now = read_owner(path)
            if now is not None and now.id != self.owner.id:
                raise Superseded(f"{self._run_dir} was taken over by {now}: this run may not write there any more")

    def close(self) -> None:
        """Releases the lock and, where the run was refused, removes all files made for it."""
        for path in self._made if not self._run_dir.exists() else ():
            with suppress(OSError):  # a folder in which others are
                path.rmdir() if path.is_dir() else path.unlink()
        for descriptor in self._files:
            os.close(descriptor)
        self._files.clear()

    def _lock(self, place: Path) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(_lock_file(place), os.O_RDWR | os.O_CREAT, 0o666)
        self._files.append(descriptor)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in NO_LOCKS:
                logger.warning(
                    "%s has no file locks (%s): make sure that no second run writes to %s", place.parent, error.strerror, place
                )
                return
            owner = read_owner(_owner_file(place))
            raise RunInUse(f"{self._run_dir} is in use by {owner or 'another process'}") from error
        if not _is_there(descriptor, _lock_file(place)):
            raise RunInUse(f"{self._run_dir} was in use by another process, which is just ending")


def read_owner(path: Path) -> Owner | None:
    """The owner that the file names; None if the file is missing or cannot be read."""
    try:
        found: Any = json.loads(path.read_text())
        owner = Owner(**found)
        return owner if isinstance(owner.token, int) else None
    except (OSError, ValueError, TypeError):
        return None


def _places(run_dir: Path) -> list[Path]:
    """The names under which the folder is locked: its own, and that of the folder to which a link leads."""
    own = run_dir.parent.resolve() / run_dir.name
    return list(dict.fromkeys([own, run_dir.resolve()]))


def _missing(place: Path) -> list[Path]:
    files = [path for path in (_owner_file(place), _lock_file(place)) if not path.exists()]
    return [*files, *(above for above in place.parents if not above.exists())]


def _is_there(descriptor: int, path: Path) -> bool:
    """True if the open file is still the one of this name."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def _lock_file(place: Path) -> Path:
    return place.with_name(f".{place.name}.lock")


def _owner_file(place: Path) -> Path:
    return place.with_name(f".{place.name}.owner.json")


def _write(path: Path, text: str) -> None:
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    aside.write_text(text)
    os.replace(aside, path)


def lock_run(config: PPOConfig) -> RunLock:
    """Raises `ConfigError`."""
    try:
        return RunLock(Path(config.run_dir))
    except RunInUse as error:
        key, value = ("explorer_name", config.explorer_name) if config.only_explores else ("exp_name", config.exp_name)
        fix = f"wait until that run ends, end it, or write another {key}"
        raise ConfigError([Problem(key, value, str(error), fix)]) from None
    except OSError as error:
        raise ConfigError([cannot_write(config, error)]) from None


def cannot_write(config: PPOConfig, error: OSError) -> Problem:
    where = error.filename or Path(config.output_dir) / config.exp_name  # a write that fails names no file
    message = f"{where} cannot be written: {error.strerror}"
    return Problem("output_dir", config.output_dir, message, "name a folder that can be written to, on a disk with space")

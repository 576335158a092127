"""A command of one's own around the code sandbox: `in_container.py RUNTIME [OPTION ...] -- COMMAND ...` starts the command by a
runtime of containers that knows the OCI's config.json (crun, runc, gVisor's runsc), with Python and the sandbox's folder in it.

The descriptor that the command is given becomes its standard input: gVisor hands on no other.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from roll.graders.sandbox.namespaces import visible


def mounts(place: str) -> list[dict[str, Any]]:
    shown = [path for path in (*visible(), *map(Path, sys.path)) if path.exists() and Path("/dev") not in path.parents]
    real = {str(path): str(path.resolve()) for path in shown}
    binds = [{"destination": path, "source": to, "type": "bind", "options": ["rbind", "ro"]} for path, to in real.items()]
    binds.append({"destination": place, "source": place, "type": "bind", "options": ["rbind", "rw"]})
    kinds = {"/proc": "proc", "/dev": "tmpfs", "/tmp": "tmpfs", "/sys": "tmpfs"}
    return [*({"destination": path, "source": kind, "type": kind} for path, kind in kinds.items()), *binds]


def config(command: list[str], place: str, mapped: bool) -> dict[str, Any]:
    namespaces: list[dict[str, str]] = [{"type": kind} for kind in ("pid", "mount", "network", "ipc", "uts")]
    linux: dict[str, Any] = {"namespaces": namespaces}
    if mapped:
        namespaces.append({"type": "user"})
        linux["uidMappings"] = [{"containerID": os.getuid(), "hostID": os.getuid(), "size": 1}]
        linux["gidMappings"] = [{"containerID": os.getgid(), "hostID": os.getgid(), "size": 1}]
    env = [f"{name}={value}" for name, value in os.environ.items()]
    user = {"uid": os.getuid(), "gid": os.getgid()} if mapped else {"uid": 0, "gid": 0}
    rights = [f"CAP_{name}" for name in ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID", "SETPCAP", "SYS_PTRACE")]
    held = {kind: rights for kind in ("bounding", "effective", "permitted")}
    process = {"args": command, "cwd": "/", "env": env, "user": user, "capabilities": held, "terminal": False}
    return {"ociVersion": "1.0.0", "root": {"path": "root"}, "process": process, "mounts": mounts(place), "linux": linux}


def main() -> None:
    end = sys.argv.index("--")
    runtime, command = sys.argv[1:end], sys.argv[end + 1 :]
    place = command[-1]
    os.dup2(int(command[-2]), 0)
    command[-2:] = ["0", "/tmp"]
    bundle = Path(tempfile.mkdtemp(prefix="bundle", dir=place))
    (bundle / "root").mkdir()
    (bundle / "config.json").write_text(json.dumps(config(command, place, mapped="runsc" not in runtime[0])))
    words = [*runtime, "--root", str(bundle / "state"), "run", "--bundle", str(bundle), bundle.name]
    os.execvp(words[0], words)


if __name__ == "__main__":
    main()

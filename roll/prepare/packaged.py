"""Parts of the package besides code: example configurations, and the makers of the embedded models. Both are in `examples/` of a
checkout; setup.py copies them to `roll/examples/` when a wheel is built, so the repository has one copy of each."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from roll.core.configs.problems import Problem

_PACKAGE = Path(__file__).parents[1]
EXAMPLES = next(
    (folder for folder in (_PACKAGE / "examples", _PACKAGE.parent / "examples") if (folder / "config").is_dir()),
    _PACKAGE / "examples",
)
_MAKERS = {
    "cache": ("make_embedded.py", "roll demo", "half a minute"),
    "cache_frozen_lake": ("make_frozen_lake.py", "roll demo agentic", "three minutes"),
    "cache_shop_agent": ("make_shop_agent.py", "roll demo agentic --config_name agent_program_async", "two minutes"),
    "cache_sokoban": ("make_sokoban.py", "roll demo agentic --config_name agent_val_sokoban", "three minutes"),
}
"""By the name of the folder: the script, the command that runs the script and trains, and the script's time on a core."""
_QUIET = {"TQDM_DISABLE": "1", "DS_ACCELERATOR": "cpu"}
"""No progress bars for files that take a moment, and no word of DeepSpeed on devices that are not used."""


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    folder: Path
    """Folder of the script's output: `model/`, and prompt files where the task has some."""
    script: Path
    demo: str
    takes: str

    @property
    def is_made(self) -> bool:
        return (self.folder / "model" / "config.json").is_file()

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(self.script), "--out", str(self.folder)]

    @property
    def how_to_make(self) -> str:
        """Returns the commands, as a user in this folder types them."""
        if self.script.is_relative_to(_PACKAGE):  # installed: nobody types that path
            return (
                f"`{self.demo}` makes it ({self.takes}), and trains; a file of yours is --config_path FOLDER --config_name NAME"
            )
        script, usual = self.script.resolve(), self.script.resolve().parent / self.folder.name
        shown = os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script)
        out = "" if self.folder.resolve() == usual else f" --out {self.folder}"
        return f"make it by `python {shown}{out}` ({self.takes}), or `{self.demo}`"

    def make(self) -> None:
        """Takes minutes, which it says. Raises `subprocess.CalledProcessError` if the script fails; it has said why."""
        print(f"making the embedded model in {self.folder} ({self.takes} on one core)", flush=True)
        subprocess.run(self.command, check=True, env=os.environ | _QUIET)


def embedded_model(pretrain: str | None) -> EmbeddedModel | None:
    """Returns the embedded model that the key `pretrain` means: a path that ends in `embedded/<one of the folders
    above>/model`."""
    path = Path(pretrain or "")
    if path.name != "model" or path.parent.parent.name != "embedded" or path.parent.name not in _MAKERS:
        return None
    script, demo, takes = _MAKERS[path.parent.name]
    return EmbeddedModel(path.parent, EXAMPLES / "embedded" / script, demo, takes)


def missing_model(pretrain: str | None) -> list[Problem]:
    """Returns a problem with its fix, if the configuration wants an embedded model that has not been made yet."""
    wanted = embedded_model(pretrain)
    if wanted is None or wanted.is_made:
        return []
    return [Problem("pretrain", pretrain, "the embedded model has not been made yet", wanted.how_to_make)]

"""Programs that tests start as processes: this checkout and the tests' support can be imported there."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from forked import Forked, Forks

_SUPPORT = Path(__file__).parent
_IMPORTS = {
    "torch": (
        "hydra",
        "matplotlib.backends.backend_agg",
        "matplotlib.figure",
        "ray",
        "roll.cli.check",
        "roll.prepare.compose",
        "roll.cli.main",
        "roll.cli.train",
        "roll.prepare.agentic_run",
        "roll.core.workers.workers",
        "roll.prepare.rlvr_run",
        "roll.prepare.training_flow",
        "roll.strategies.infer.hf.strategy",
        "roll.strategies.train.critic",
        "roll.strategies.train.fsdp2",
        "saving",
        "torch.utils.tensorboard",
        "train_specs",
        *(f"transformers.models.{family}.modeling_{family}" for family in ("llama", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe")),
    ),
    "deepspeed": ("deepspeed", "roll.strategies.train.deepspeed_zero"),
    "megatron": ("roll.strategies.train.megatron.critic", "roll.strategies.train.megatron.strategy"),
    "peft": ("peft",),
    "sqlalchemy": ("roll.topologies.disaggregated", "roll.topologies.shared_groups"),
}
"""Package -> what runs and ranks import where it is installed."""
RUN_IMPORTS = tuple(name for package, names in _IMPORTS.items() if find_spec(package) for name in names)
VLLM_IMPORTS = (
    "vllm.model_executor.models.qwen2",
    "vllm.model_executor.models.qwen3",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
)
"""What an engine's processes import, and what they find in their environment then."""
VLLM_ENVIRONMENT = {"VLLM_LOGGING_LEVEL": "ERROR", "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1"}


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(_SUPPORT.parents[1]), str(_SUPPORT)])}


def obey_modes() -> None:
    """For `launch(before=...)`, before Python begins there: root is bound by the modes of files, as everybody else is."""
    drop_from_bounding_set, cap_dac_override = 24, 1
    ctypes.CDLL(None).prctl(drop_from_bounding_set, cap_dac_override, 0, 0, 0)


class Programs:
    """Programs that find their imports made."""

    def __init__(self, folder: Path, forks: Forks) -> None:
        """`folder`: for what they print."""
        self._folder = folder
        self._forks = forks
        self._started = 0

    def start(self, program: Path, *arguments: object) -> tuple[Forked, Path]:
        """The process, and the file of what it prints."""
        self._started += 1
        log = self._folder / f"{self._started}.txt"
        with log.open("wb") as output:
            return self._forks.start([str(program), *map(str, arguments)], self._folder, environment(), output), log

    def run(self, program: Path, *each: Sequence[object], timeout_s: float = 250.0) -> None:
        """As many processes at the same time as there are lists of arguments, to their ends."""
        started = [self.start(program, *arguments) for arguments in each]
        try:
            for process, log in started:
                assert process.wait(timeout_s) == 0, log.read_text()[-5000:]
        finally:
            for process, _ in started:
                process.kill()

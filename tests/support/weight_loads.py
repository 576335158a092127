"""How often engines have loaded new weights."""

from pathlib import Path
from typing import Any

from safetensors.torch import load_file


def loads_of_an_engine(summary: dict[str, Any], model: Path | str, engines: int) -> float:
    """The mean over the engines of a run, from the bytes that they took. The number of updates does not say it: engines that
    take turns make two of what is one if they load together."""
    of_a_load = sum(tensor.nbytes for tensor in load_file(Path(model) / "model.safetensors").values())
    return float(summary["weight_updates"]["bytes"]) / of_a_load / engines

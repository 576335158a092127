"""`roll export`: the trained model of a checkpoint as a Hugging Face folder, whichever back end trained it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from roll.cli.best_checkpoint import named_best
from roll.cli.options import Parser, answering
from roll.core.configs.problems import ConfigError, Problem
from roll.core.configs.sizes import TORCH_NAMES, ComputeDtype

if TYPE_CHECKING:
    from torch import Tensor


@answering
def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 2 if nothing could be written."""
    parser = Parser(prog="roll export", description="Weights, configuration and tokenizer; LoRA adapters are merged.")
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="FOLDER",
        help="<output_dir>/<exp_name>/checkpoints/step-<n>, a run (its newest complete one), or best: of the run that is here",
    )
    parser.add_argument("--output", required=True, metavar="FOLDER", help="is made; must not be there, or be empty")
    parser.add_argument("--dtype", choices=TORCH_NAMES, default="fp32", help="type of the weights (default: fp32, the masters')")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    parameters = export(named_best(options.checkpoint), Path(options.output), options.dtype)
    told = {"output": options.output, "parameters": parameters, "dtype": options.dtype}
    print(json.dumps(told) if options.json else f"{options.output}: {parameters:,} parameters in {options.dtype}")
    return 0


def export(checkpoint: Path, output: Path, dtype: ComputeDtype) -> int:
    """Writes the folder whole or not at all, a tensor at a time, and returns the number of parameters. `checkpoint`: its folder,
    or that of a run, whose newest complete one it is.

    Raises `ConfigError`: the checkpoint is not complete or not what was saved (its hashes are checked), or the output cannot be
    written."""
    from roll.core.errors import CheckpointError
    from roll.core.record.checkpoint import CheckpointStore
    from roll.platform.checkpoint_readers import reading

    runs = (CheckpointStore(place) for place in (checkpoint / "checkpoints", checkpoint))
    run = next((store for store in runs if any(store.root.glob("step-*"))), None)
    try:
        hold = reading(*([checkpoint] if run is None else [run.root / f"step-{step}" for step in run.steps()]))
        found = CheckpointStore(checkpoint.parent).load(checkpoint) if run is None else run.resolve(True)
        assert found is not None
        model = found.model
    except CheckpointError as error:
        raise ConfigError([Problem("--checkpoint", str(checkpoint), str(error), "name a complete one")]) from None
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError([Problem("--output", str(output), "exists already and is not empty", "name another folder")])
    partial = output.parent / f".{output.name}.partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        count = _write(model, partial, dtype)
        if output.exists():
            output.rmdir()
        partial.rename(output)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise ConfigError([Problem("--output", str(output), f"cannot be written: {error}", "name another folder")]) from None
    finally:
        hold.close()
    return count


def _write(model: Path, folder: Path, dtype: ComputeDtype) -> int:
    from roll.core.weights.folder_files import CONFIG, INDEX, share_like
    from roll.strategies.train.tensor_files import write_tensors

    for path in model.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and path.name not in (INDEX, CONFIG):
            shutil.copyfile(path, folder / path.name)
    config = json.loads((model / CONFIG).read_text())
    config.pop("torch_dtype", None)  # the name that transformers gave the file before
    (folder / CONFIG).write_text(json.dumps({**config, "dtype": TORCH_NAMES[dtype]}, indent=2) + "\n")
    sizes: list[int] = []
    write_tensors(folder, _tensors(model, TORCH_NAMES[dtype], sizes))
    share_like(folder / CONFIG, folder)
    return sum(sizes)


def _tensors(model: Path, dtype: str, sizes: list[int]) -> Iterator[tuple[str, Tensor]]:
    """Integers keep their type. The number of elements of each tensor goes to `sizes`."""
    import torch
    from safetensors import safe_open

    for path in sorted(model.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                tensor = file.get_tensor(name)
                sizes.append(tensor.numel())
                yield name, tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor

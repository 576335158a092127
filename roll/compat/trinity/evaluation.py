"""What Trinity-RFT's keys about evaluation become: task sets with their own sampling, and `mode: bench`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll.compat.roll.rule import KeyRule, lacking, off_or_lacking
from roll.compat.trinity.file import (
    MATH_REWARD,
    MATH_WORKFLOWS,
    TASKS,
    File,
    at,
    is_count,
    is_one_of,
    is_text,
    run_folder,
    task_data,
)

OF_TRAINING = (
    "algorithm", "trainer", "synchronizer", "buffer.batch_size", "buffer.train_batch_size", "buffer.total_epochs",
    "buffer.total_steps", "buffer.trainer_input",
)  # fmt: skip
"""Keys, and blocks of keys, that mean nothing where nothing is trained."""
UNTRAINED = KeyRule("", "without effect", "nothing is trained with mode bench")

_SETS = "buffer.explorer_input.eval_tasksets"
_KEYS = {
    "name", "storage_type", "path", "subset_name", "split", "format", "rollout_args", "repeat_times", "default_workflow_type",
}  # fmt: skip
_COLUMNS = {"prompt_key": "prompt", "response_key": "ground_truth", "messages_key": "messages"}
_SAMPLING = {"temperature", "top_p", "top_k", "n"}


def is_untrained(path: str, file: File) -> bool:
    return file.get("mode") == "bench" and any(path == key or path.startswith(f"{key}.") for key in OF_TRAINING)


def _models(value: object, file: File) -> Mapping[str, Any]:
    root = run_folder(at(file, "checkpoint_root_dir", "./checkpoints"), file)
    return {"mode": value, "bench_checkpoints": ["pretrain", f"{root}/{at(file, 'name', 'rft')}"]}


def _are_sets(value: object, file: File) -> bool:
    """Whether each of them is a file of mathematics, or of what the tasks of training are rewarded for."""
    if not isinstance(value, list) or not all(isinstance(each, Mapping) and _is_set(each, file) for each in value):
        return False
    return len({_name(each) for each in value}) == len(value)


def _is_set(given: Mapping[str, object], file: File) -> bool:
    columns, sampling = given.get("format") or {}, given.get("rollout_args") or {}
    if not isinstance(columns, Mapping) or not isinstance(sampling, Mapping):
        return False
    known = given.keys() <= _KEYS and columns.keys() <= _COLUMNS.keys() and sampling.keys() <= _SAMPLING
    numbers = all(isinstance(value, int | float) for value in sampling.values())
    workflow = given.get("default_workflow_type") or at(file, f"{TASKS}.default_workflow_type")
    counts = [count for count in (given.get("repeat_times"), sampling.get("n")) if count is not None]
    usable = all(is_text(given.get(key), file) for key in ("name", "path")) and given.get("storage_type", "file") == "file"
    return known and numbers and usable and workflow in MATH_WORKFLOWS and all(map(is_count, counts))


def _name(given: Mapping[str, Any]) -> str:
    return str(given["name"]).replace(".", "_").replace("/", "_")


def _sets(value: Any, file: File) -> Mapping[str, object]:
    found: dict[str, Any] = {}
    for given in value:
        key, columns, sampling = f"validation_sets.{_name(given)}", given.get("format") or {}, given.get("rollout_args") or {}
        found |= {f"{key}.data_args.{name}": each for name, each in task_data(given).items()}
        for theirs, ours in _COLUMNS.items():
            if columns.get(theirs) is not None:
                found[f"{key}.data_args.{ours}"] = columns[theirs]
        for name in ("temperature", "top_p"):
            found[f"{key}.generating_args.{name}"] = sampling.get(name, at(file, f"model.{name}", 1.0))
        found[f"{key}.generating_args.top_k"] = max(0, sampling.get("top_k", 0))
        found[f"{key}.generating_args.num_return_sequences"] = given.get("repeat_times") or sampling.get("n") or 1
    if at(file, f"{TASKS}.default_workflow_type") is None:
        found["rewards.tasks.worker_cls"] = MATH_REWARD
    return found


RULES = (
    KeyRule("mode", "alias", "with bench_checkpoints: the model of pretrain, and the checkpoints of the run in the folder that "
            "checkpoint_root_dir, project, group and name make", _models, is_one_of("bench"), "bench"),
    KeyRule(_SETS, "without effect", "there are none", when=lambda v, f: not v, values="[], null"),
    KeyRule(_SETS, "alias", "read as validation_sets: data_args, and generating_args with num_return_sequences for repeat_times",
            _sets, _are_sets, "files for math_workflow"),
    lacking(_SETS, "each needs a name, a path and math_workflow: write validation_sets: {<name>: {data_args: ..., "
            "generating_args: ...}}"),
    *off_or_lacking("explorer.bench_on_latest_checkpoint", (False, None), "write bench_checkpoints: [<checkpoint>]"),
)  # fmt: skip

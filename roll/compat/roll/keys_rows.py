"""ROLL's keys of its SFT and DPO pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll.compat.roll.pipelines import ROWS_KEYS
from roll.compat.roll.rule import KeyRule, Siblings, Translate

_PROMPT, _RESPONSE = "instruction", "output"
"""ROLL's columns of a row of SFT."""


def trained(role: Any, file: Siblings) -> Mapping[str, object]:
    if not isinstance(role, Mapping):
        return {"actor_train": role}
    training = dict(role.get("training_args") or {})
    epochs = training.pop("num_train_epochs", None)
    read = {"actor_train": {**role, "training_args": training}, "sft.response": file.get("response_key", _RESPONSE)}
    return read | {"total_epochs": epochs} if epochs is not None and "max_steps" not in file else read


def column(name: str) -> Any:
    """Returns a reading of a column's name for the rows of training and of evaluation."""

    def read(column: object, file: Siblings) -> Mapping[str, object]:
        blocks = ("actor_train", "validation") if file.get("validation") else ("actor_train",)
        return {f"{block}.data_args.{name}": column for block in blocks}

    return read


def _of_rows(value: object, file: Siblings) -> bool:
    return any(key in file for key in ROWS_KEYS)


def _rule(path: str, note: str, to: Translate) -> KeyRule:
    return KeyRule(path, "alias", note, to, _of_rows, "SFT and DPO", absent=True, whole=True)


def _renamed(path: str, to: str) -> KeyRule:
    return _rule(path, f"read as `{to}`", lambda value, file: {to: value})


RULES = (
    _rule(
        "sft_train",
        "read as `actor_train`, its `num_train_epochs` as `total_epochs`; ROLL's columns are "
        f"{_PROMPT} and {_RESPONSE} unless prompt_key and response_key name others",
        lambda v, f: {**trained(v, f), **({} if "prompt_key" in f else column("prompt")(_PROMPT, f))},
    ),
    _rule("prompt_key", "read as `data_args.prompt` of actor_train and validation", column("prompt")),
    _renamed("query_key", "sft.query"),
    _renamed("response_key", "sft.response"),
    _renamed("system_key", "sft.system"),
    _renamed("chosen_key", "dpo.chosen"),
    _renamed("rejected_key", "dpo.rejected"),
    _renamed("beta", "dpo.beta"),
    _renamed("label_smoothing", "dpo.label_smoothing"),
    _rule("ipo", "read as `dpo.loss`: ipo, or sigmoid", lambda v, f: {"dpo.loss": "ipo" if v else "sigmoid"}),
    KeyRule(
        "train_batch_size",
        "without effect",
        "a batch is per_device_train_batch_size x gradient_accumulation_steps x data-parallel ranks",
        when=_of_rows,
        values="SFT and DPO",
        absent=True,
        whole=True,
    ),
)

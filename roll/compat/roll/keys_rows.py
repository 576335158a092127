"""ROLL's keys of its SFT and DPO pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll.compat.roll.pipelines import ROWS_KEYS
from roll.compat.roll.rule import KeyRule, Siblings, ignored, of_files, renamed

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


RULES = of_files("SFT and DPO", lambda file: any(key in file for key in ROWS_KEYS),
    KeyRule("sft_train", "alias", "read as `actor_train`, its `num_train_epochs` as `total_epochs`; ROLL's columns are "
            f"{_PROMPT} and {_RESPONSE} unless prompt_key and response_key name others",
            lambda v, f: {**trained(v, f), **({} if "prompt_key" in f else column("prompt")(_PROMPT, f))}),
    KeyRule("prompt_key", "alias", "read as `data_args.prompt` of actor_train and validation", column("prompt")),
    renamed("query_key", "sft.query"),
    renamed("response_key", "sft.response"),
    renamed("system_key", "sft.system"),
    renamed("chosen_key", "dpo.chosen"),
    renamed("rejected_key", "dpo.rejected"),
    renamed("beta", "dpo.beta"),
    renamed("label_smoothing", "dpo.label_smoothing"),
    KeyRule("ipo", "alias", "read as `dpo.loss`: ipo, or sigmoid", lambda v, f: {"dpo.loss": "ipo" if v else "sigmoid"}),
    ignored("train_batch_size", "a batch is per_device_train_batch_size x gradient_accumulation_steps x data-parallel ranks"),
)  # fmt: skip

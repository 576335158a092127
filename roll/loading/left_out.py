"""What an RLVR configuration leaves out, and its model and its prompts say: the chat template, and how long prompts and responses
may be. Keys that are written always win."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from roll.configs.arguments import DataArguments, Template, TrainDataArguments
from roll.configs.problems import MISSING_VALUE, Note
from roll.configs.rlvr import RLVRConfig
from roll.configs.worker import ActorTrainConfig, ValidationConfig
from roll.data.hub import cached, is_hub_name, where_from
from roll.data.prompt_file import PromptRow, read_rows
from roll.errors import PromptFileError
from roll.loading.fitting import MOST_ROWS, OpenedModel, measured, opened

B = TypeVar("B", ActorTrainConfig, ValidationConfig)
_OF_TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")


def fill_in(config: RLVRConfig, written: Mapping[str, Any], fetch: bool) -> tuple[RLVRConfig, list[Note]]:
    """With the template and the lengths that are not among the `written` keys, and a note for each. `fetch`: a model of the hub
    may be fetched for it. Where lengths cannot be derived they stay missing, which the rules tell with what else is wrong, and a
    note says why."""
    name = config.model_folder(config.actor_train)
    if not name or config.only_evaluates:
        return config, []
    folder = cached(name) if is_hub_name(name) else Path(name)
    if folder is not None and not folder.is_dir():  # the rules tell it, with what else is wrong
        return config, []
    config, notes = _with_template(config, written, folder)
    if config.response_length is not None or config.sequence_length is not None:
        return config, notes
    if folder is None and not fetch:
        return config, [*notes, Note("response_length", MISSING_VALUE, f"cannot be derived: {where_from(name)}")]
    data = config.actor_train.data_args
    try:
        model = opened(name, "pretrain")
        rows = [
            row
            for key, each in _data(config).items()
            for row in islice(read_rows(each, f"{key}.data_args", only_tag=""), MOST_ROWS)
        ]
        prompt, response = _lengths(model, rows, data, config.prompt_length if "prompt_length" in written else None)
    except ValueError as error:
        return config, [*notes, Note("response_length", MISSING_VALUE, f"cannot be derived: {error}")]
    said = f"left out; fits {len(rows):,} prompts and their answers, and the {model.context:,} tokens of the model"
    found = {"prompt_length": prompt, "response_length": response}
    notes += [Note(key, value, said, told=True) for key, value in found.items() if key not in written]
    return replace(config, prompt_length=prompt, response_length=response), notes


def _lengths(model: OpenedModel, rows: list[PromptRow], data: TrainDataArguments, prompt: int | None) -> tuple[int, int]:
    from roll.data.chat_template import set_variables

    set_variables(model.tokenizer, data.chat_template_kwargs)
    found = measured(model, rows, data.template)
    prompt = found.prompt if prompt is None else prompt
    if model.context <= prompt:
        raise ValueError(f"prompt_length {prompt} leaves no room in the {model.context} tokens of the model")
    return prompt, min(found.response, model.context - prompt)


def _with_template(config: RLVRConfig, written: Mapping[str, Any], folder: Path | None) -> tuple[RLVRConfig, list[Note]]:
    """Where the tokenizer has none, and nothing that is written needs one."""
    if folder is None or not (folder / "tokenizer_config.json").is_file() or _has_template(folder):
        return config, []
    found: dict[str, Template] = {
        key: "chatml" if _has_messages(data) else "none"
        for key, data in _data(config).items()
        if "template" not in _under(written, f"{key}.data_args") and data.system_prompt is None
    }
    if config.actor_train.data_args.chat_template_kwargs or not found:
        return config, []
    notes = [
        Note(f"{key}.data_args.template", template, "left out; the tokenizer has no chat template", told=True)
        for key, template in found.items()
    ]
    trained = _rendered(config.actor_train, found.get("actor_train"))
    one = config.validation and _rendered(config.validation, found.get("validation"))
    sets = {name: _rendered(each, found.get(f"validation_sets.{name}")) for name, each in config.validation_sets.items()}
    return replace(config, actor_train=trained, validation=one, validation_sets=sets), notes


def _rendered(block: B, template: Template | None) -> B:
    return block if template is None else replace(block, data_args=replace(block.data_args, template=template))


def _data(config: RLVRConfig) -> dict[str, DataArguments]:
    """By the key of its block."""
    one = {"validation": config.validation.data_args} if config.validation else {}
    sets = {f"validation_sets.{name}": each.data_args for name, each in config.validation_sets.items()}
    return {"actor_train": config.actor_train.data_args, **one, **sets}


def _has_template(folder: Path) -> bool:
    in_file = "chat_template" in (folder / "tokenizer_config.json").read_text(encoding="utf-8", errors="replace")
    return in_file or any((folder / name).exists() for name in _OF_TEMPLATES)


def _has_messages(data: DataArguments) -> bool:
    if data.path is not None:
        return False
    rows: Iterator[PromptRow] = read_rows(data, only_tag="")
    try:
        return next(rows).messages is not None
    except (PromptFileError, StopIteration):  # told where prompts are read
        return False


def _under(written: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    found: Any = written
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}

"""Missing keys of an RLVR configuration, derived from its model and its prompts: the chat template, the columns, the lengths of
prompts and responses; and the facts of a Hugging Face folder about its model without loading it. Written keys always win."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any, TypeVar

from roll.core.configs.arguments import DataArguments, Template, TrainDataArguments
from roll.core.configs.problems import MISSING_VALUE, ConfigError, Note, Problem
from roll.core.configs.rlvr import RLVRConfig
from roll.core.configs.worker import ActorTrainConfig, ValidationConfig
from roll.core.errors import Fixable, PromptFileError, boundary
from roll.core.weights.folder_files import CONFIG, read_json, stored_tensors, weight_files
from roll.prompts.hub import cached, fetch, is_hub_name, refusal, where_from
from roll.prompts.prompt_file import PromptRow, read_rows


@dataclass(frozen=True, slots=True)
class ModelFiles:
    config: dict[str, Any] | None
    """Content of `config.json`; None if there is none that can be read."""
    stored_parameters: int | None
    """Numbers in the weight files; None without such files."""
    note: str
    """Missing or unreadable parts; empty if there are none."""


def read_model_folder(folder: str) -> ModelFiles:
    """Reads the folder. It never raises for the folder's contents: a problem stands in the note."""
    root = Path(folder)
    if not root.is_dir():
        return ModelFiles(None, None, f"{folder} is not there")
    try:
        config = read_json(root / CONFIG)
    except FileNotFoundError:
        return ModelFiles(None, None, f"{folder} has no config.json")
    except OSError as error:
        return ModelFiles(None, None, f"{folder}/config.json cannot be read: {error}")
    except ValueError as error:
        return ModelFiles(None, None, str(error))
    try:
        files = weight_files(root)
        if not files:
            return ModelFiles(config, None, f"{folder} has no *.safetensors; parameters are counted by formula")
        stored = sum(prod(tensor.shape) for tensor in stored_tensors(files).values())
    except (OSError, ValueError) as error:
        return ModelFiles(config, None, f"{error}; parameters are counted by formula")
    return ModelFiles(config, stored, "")


RESPONSE_LENGTH = 256
"""Tokens of a response, unless the reference answers are longer than half of that."""
MOST_ROWS = 4096
"""Rows that are measured; a longer prompt among the others is left out of the run, and counted."""

COLUMNS = {
    "prompt": ("prompt", "question", "problem", "instruction", "query", "input"),
    "messages": ("messages", "conversation"),
    "ground_truth": ("ground_truth", "answer", "solution", "target", "output", "label"),
}
"""Names of columns of each kind, the usual one first."""


@dataclass(frozen=True, slots=True)
class OpenedModel:
    name: str
    """The folder as an absolute path, or the name on the hub."""
    tokenizer: Any
    context: int
    """Tokens that the model can attend to."""

    def template(self, rows: Sequence[Mapping[str, Any]] = ()) -> Template:
        """Returns the template for rows like these."""
        if self.tokenizer.chat_template:
            return "native"
        return "chatml" if rows and _conversation(rows[0]) else "none"


@dataclass(frozen=True, slots=True)
class FittedLengths:
    prompt: int
    response: int


def opened(model: str, key: str) -> OpenedModel:
    """Opens a folder, or a model of the hub, which is fetched if missing. Raises `ConfigError` that names `key`."""
    named = is_hub_name(model)
    try:
        folder = (cached(model) or fetch(model)) if named else Path(model)
    except Exception as error:  # boundary: the hub, the network and the disk each have errors of their own
        raise ConfigError([Problem(key, model, *refusal(error))]) from None
    found = read_model_folder(str(folder))
    config = found.config
    if config is None:
        raise ConfigError([Problem(key, model, found.note, "name a Hugging Face folder, or owner/model of the hub")])
    from roll.strategies.model_folder import check_model_folder, load_tokenizer

    try:
        check_model_folder(Path(folder))
        tokenizer = load_tokenizer(Path(folder))
    except (OSError, ValueError) as error:
        raise ConfigError([Problem(key, model, str(error), "name a complete Hugging Face folder")]) from None
    context = config.get("max_position_embeddings")
    return OpenedModel(model if named else str(folder.resolve()), tokenizer, context if isinstance(context, int) else 1 << 30)


def lengths(
    model: OpenedModel, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, object], template: Template, key: str
) -> FittedLengths:
    """Returns the lengths that fit the rows. `columns`: of `data_args`. Raises `ConfigError` that names `key`."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        file.write(as_lines(rows[:MOST_ROWS], key))
        file.flush()
        try:
            read = list(read_rows(DataArguments(file_name=file.name, **dict(columns)), only_tag=""))  # type: ignore[arg-type]
            return measured(model, read, template)
        except ValueError as error:
            fix = (error.fix if isinstance(error, Fixable) else "") or "mend the row"
            raise ConfigError([Problem(key, "rows", str(error).replace(file.name, "row"), fix)]) from None


def measured(model: OpenedModel, rows: Sequence[PromptRow], template: Template) -> FittedLengths:
    """Returns the lengths that fit the rows, and the model. Raises `ValueError`."""
    from roll.prompts.chat_template import encode, render

    prompts = encode(render(rows, model.tokenizer, template), model.tokenizer, template)
    answers = encode([row.ground_truth or "-" for row in rows], model.tokenizer, "native")
    prompt = min(_up(max(map(len, prompts))), model.context // 2)
    return FittedLengths(prompt, min(max(RESPONSE_LENGTH, _up(2 * max(map(len, answers)))), model.context - prompt))


def usual_columns(row: Mapping[str, Any], key: str, value: object) -> dict[str, str]:
    """Returns the keys of `data_args` for columns with another name than the first in `COLUMNS`. Raises `ConfigError`, about this
    key and its value, where there is no prompt."""
    found = {kind: next((name for name in names if name in row), None) for kind, names in COLUMNS.items()}
    if (conversation := _conversation(row)) is not None:
        found |= {"prompt": None, "messages": conversation}
    if found["ground_truth"] is None and isinstance(row.get("reward_model"), Mapping):  # as verl's files have it
        found["ground_truth"] = "reward_model.ground_truth"
    if found["prompt"] is None and found["messages"] is None:
        names = ", ".join((*COLUMNS["prompt"], *COLUMNS["messages"]))
        message = f"has no column with a prompt: {', '.join(map(str, row)) or 'it is empty'}"
        raise ConfigError([Problem(key, value, message, f"call it one of {names}")])
    return {kind: name for kind, name in found.items() if name is not None and name != kind}


def _conversation(row: Mapping[str, Any]) -> str | None:
    """The column with messages, which in TRL's and verl's rows is called `prompt`."""
    named = (name for name in COLUMNS["messages"] if name in row)
    listed = (name for name in COLUMNS["prompt"] if isinstance(row.get(name), list))
    return next(named, None) or next(listed, None)


def as_lines(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    """Returns rows as the text of a file. Raises `ConfigError` that names `key`."""
    fix = "texts, numbers, lists and mappings"
    with boundary(lambda why: ConfigError([Problem(key, "rows", why, fix)]), say=str):
        return "".join(json.dumps(row) + "\n" for row in rows)


def _up(tokens: int) -> int:
    """Rounds up: a length that is easily remembered, and room for one more word."""
    return -(-(tokens + 1) // 32) * 32


B = TypeVar("B", ActorTrainConfig, ValidationConfig)
_OF_TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")


def fill_in(config: RLVRConfig, written: Mapping[str, Any], fetch: bool) -> tuple[RLVRConfig, list[Note]]:
    """Adds the template and the lengths that are not among the `written` keys, and a note for each. `fetch`: a model of the hub
    may be fetched for it. Lengths that cannot be derived stay missing: a note says why, and the rules report them."""
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
    from roll.prompts.chat_template import set_variables

    set_variables(model.tokenizer, data.chat_template_kwargs)
    found = measured(model, rows, data.template)
    prompt = found.prompt if prompt is None else prompt
    if model.context <= prompt:
        raise ValueError(f"prompt_length {prompt} leaves no room in the {model.context} tokens of the model")
    return prompt, min(found.response, model.context - prompt)


def _with_template(config: RLVRConfig, written: Mapping[str, Any], folder: Path | None) -> tuple[RLVRConfig, list[Note]]:
    """Adds a template where the tokenizer has none, and no written key needs one."""
    if folder is None or not (folder / "tokenizer_config.json").is_file() or _has_template(folder):
        return config, []
    found: dict[str, Template] = {
        key: "chatml" if _has_messages(data) else "none"
        for key, data in _data(config).items()
        if "template" not in under(written, f"{key}.data_args") and data.system_prompt is None
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
    """Returns the data by the key of its block."""
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


def under(written: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    found: Any = written
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}

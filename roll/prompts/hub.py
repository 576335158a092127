"""Models by the names that they have on the Hugging Face hub: fetched once, before a run, to the hub's usual cache. (`datasets`
fetches data sets.)

A name is `owner/model` or `owner/model@revision`, where a folder of that name is not there. Only configuration, tokenizer and
safetensors are fetched: no code, no pickles. The hub's own variables apply (`HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN`,
`HF_HUB_OFFLINE`). With `USE_MODELSCOPE=1` the names are ModelScope's, those of data sets too, and its package fetches to its own
cache.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from roll.core.configs.ppo import PPOConfig
from roll.core.configs.problems import ConfigError, Problem
from roll.core.configs.worker import TEACHERS, RewardConfig, WorkerConfig
from roll.core.errors import boundary

C = TypeVar("C", bound=PPOConfig)
R = TypeVar("R", bound=WorkerConfig)

DATA_FILES = ("*.json", "*.jsonl", "*.csv", "*.tsv", "*.parquet", "*.arrow", "*.txt", "*.gz", "*.zst", "*.zip", "*.xz", "*.md")
"""Files of a data set: `README.md` says which of them are which subset and split."""
FETCHED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
_NAME = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[\w.-]+)(@(?P<revision>[\w./-]+))?")


def is_hub_name(model: str) -> bool:
    return _NAME.fullmatch(model) is not None and not Path(model).exists()


def hub_names(config: PPOConfig) -> Iterator[tuple[str, str]]:
    """The keys of the roles that a run starts, and the names that they have."""
    if config.pretrain is not None and is_hub_name(config.pretrain):
        yield "pretrain", config.pretrain
    for name, role in config.roles().items():
        model = role.model_args.model_name_or_path
        if model is not None and is_hub_name(model):
            yield f"{name}.model_args.model_name_or_path", model
    for domain, reward in config.reward_configs.items():
        for name, judging in reward.models.items():
            if is_hub_name(judging.model_name_or_path):
                yield f"rewards.{domain}.{name}.model_name_or_path", judging.model_name_or_path


def asks_the_hub(config: PPOConfig) -> bool:
    """True if the configuration names something that may have to be fetched."""
    return any(hub_names(config)) or any(data.path is not None for data in config.data_sources.values())


def with_fetched_models(config: C) -> C:
    """The configuration with folders in the place of names. Raises `ConfigError`."""
    folders, problems = dict[str, str](), list[Problem]()
    for key, name in hub_names(config):
        try:
            folders[name] = folders.get(name) or str(fetch(name))
        except Exception as error:  # boundary: the hub, the network and the disk each have errors of their own
            problems.append(Problem(key, name, *refusal(error)))
    if problems:
        raise ConfigError(problems)
    changed: dict[str, Any] = {"pretrain": folders.get(config.pretrain or "", config.pretrain)}
    roles = {name: role for name, role in config.roles().items() if not name.startswith(TEACHERS)}
    changed |= {name: _with_folder(role, folders) for name, role in roles.items()}
    changed["teachers"] = {name: _with_folder(teacher, folders) for name, teacher in config.teachers.items()}
    if config.reward_configs:
        changed["rewards"] = {domain: _with_folders(reward, folders) for domain, reward in config.reward_configs.items()}
    return replace(config, **changed) if folders else config


def _with_folder(role: R, folders: dict[str, str]) -> R:
    name = role.model_args.model_name_or_path or ""
    model = replace(role.model_args, model_name_or_path=folders[name]) if name in folders else role.model_args
    return replace(role, model_args=model)


def _with_folders(reward: RewardConfig, folders: dict[str, str]) -> RewardConfig:
    changed: dict[str, Any] = {
        name: replace(model, model_name_or_path=folders.get(model.model_name_or_path, model.model_name_or_path))
        for name, model in reward.models.items()
    }
    return replace(reward, **changed)


def fetch(name: str) -> Path:
    """Returns the folder in the cache that holds the model; fetches missing files, and shows the progress. Raises `ValueError` if
    ModelScope is asked for and its package is not installed."""
    repo, revision = _parts(name)
    if asks_modelscope():
        folder = _fetch_from_modelscope(repo, revision)
        print(f"{name} is ModelScope's, in {folder}")
        return folder
    from huggingface_hub import snapshot_download

    with quietly():
        folder = Path(snapshot_download(repo, revision=revision, allow_patterns=list(FETCHED)))
    print(f"{name} is commit {folder.name} of the hub, in {folder}")
    return folder


def asks_modelscope() -> bool:
    return os.environ.get("USE_MODELSCOPE", "").lower() in ("1", "true", "yes")


def _fetch_from_modelscope(repo: str, revision: str | None, local_files_only: bool = False) -> Path:
    with boundary(ValueError, say=_no_modelscope):
        from modelscope import snapshot_download
    options: dict[str, Any] = {"revision": revision, "allow_patterns": list(FETCHED), "local_files_only": local_files_only}
    return Path(snapshot_download(repo, **options))


def fetch_data_set(repo: str, revision: str | None) -> Path:
    """The folder in ModelScope's cache that holds the files of a data set, without code. Raises as `fetch`."""
    with boundary(ValueError, say=_no_modelscope):
        from modelscope import dataset_snapshot_download
    folder = Path(dataset_snapshot_download(repo, revision=revision, allow_file_pattern=list(DATA_FILES)))
    print(f"{repo} is ModelScope's, in {folder}")
    return folder


def _no_modelscope(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return "USE_MODELSCOPE is set, but its package is not installed: pip install modelscope, or unset the variable"
    return f"USE_MODELSCOPE is set, but its package is too old: pip install -U modelscope ({error})"


def cached(name: str) -> Path | None:
    """The folder of a model that was fetched before."""
    if asks_modelscope():
        with contextlib.suppress(Exception):  # boundary: it raises what it likes where there is nothing
            return _fetch_from_modelscope(*_parts(name), local_files_only=True)
        return None
    from huggingface_hub import try_to_load_from_cache

    repo, revision = _parts(name)
    found = try_to_load_from_cache(repo, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None


def where_from(name: str) -> str:
    """Names the place that a model would come from which is not in the cache."""
    if asks_modelscope():
        return f"{name} is not here: a run fetches it from ModelScope"
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    return f"{name} is not here: a run fetches it from {endpoint}/{_parts(name)[0]}"


def _parts(name: str) -> tuple[str, str | None]:
    found = _NAME.fullmatch(name)
    assert found is not None
    return found["repo"], found["revision"]


OUT_OF_REACH = "name a folder, set HF_ENDPOINT to a mirror, or bring the cache (HF_HOME) of a machine that has fetched it"


def refusal(error: BaseException) -> tuple[str, str]:
    """Returns why a model or a data set could not be fetched, and the fix: in our words where the reason is known."""
    from huggingface_hub import constants

    hub, chain = constants.ENDPOINT, [error]
    while (below := chain[-1].__cause__ or chain[-1].__context__) is not None and isinstance(below, Exception):
        chain.append(below)
    names = {kind.__name__ for each in chain for kind in type(each).__mro__}
    if "GatedRepoError" in names:
        return f"{hub} gives it to those who accept its terms", "accept them on its page, and set HF_TOKEN"
    if "RevisionNotFoundError" in names:
        return f"{hub} has no such revision of it", "owner/name@revision with a branch, tag or commit that is there"
    if names & {"RepositoryNotFoundError", "DatasetNotFoundError"}:
        return f"no folder here, and {hub} has nothing of that name, or it is private", "correct the name, or set HF_TOKEN"
    away = bool(names & {"LocalEntryNotFoundError", "TransportError", "ConnectionError", "TimeoutError"})
    if "OfflineModeIsEnabled" in names or (constants.HF_HUB_OFFLINE and away):
        return "no folder here, not in the cache, and HF_HUB_OFFLINE keeps the hub from being asked", f"unset it; {OUT_OF_REACH}"
    if away:
        why = next((f" ({each})" for each in reversed(chain) if isinstance(each, OSError) and each.errno), "")
        return f"no folder here, and {hub} cannot be reached{why}", OUT_OF_REACH
    text = " ".join(str(error).split())[:300]
    return f"the hub: {type(error).__name__}: {text}", "the folder of a model, or owner/model[@revision] of the hub"


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silences the line for each try of a hub that cannot be reached."""
    logger = logging.getLogger("huggingface_hub.utils._http")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)

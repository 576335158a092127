"""All model folders of a run: who reads them, and what does not fit, of a folder with itself, with the run's keys, and of two
folders that are given the same tokens. `roll check` asks before anything is loaded, a start with the tokenizers that it has
loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from roll.core.configs.arguments import GeneratingArguments
from roll.core.configs.engines import engine_of
from roll.core.configs.ppo import PPOConfig, set_key
from roll.core.configs.problems import Note, Problem
from roll.core.configs.worker import TEACHERS
from roll.core.weights.folder_files import (
    CONFIG,
    StoredTensor,
    beginning,
    beyond_context,
    read_json,
    stored_tensors,
    weight_files,
)
from roll.prompts.hub import cached, is_hub_name
from roll.strategies.folder_tokens import PADDING, FolderTokens, folder_tokens

CLASSIFIER = "reward_model"
ANSWER = "\u27e6answer\u27e7"
TURN = [{"role": "user", "content": "."}, {"role": "assistant", "content": ANSWER}]
_SHARE = ("actor_train", "actor_infer", "actor_log_prob")
"""Roles whose weights are one model's: those of the first are given to the others."""


@dataclass(frozen=True, slots=True)
class UsedModel:
    """A folder, as one role uses it."""

    role: str
    """Empty for one whose weights engines take in turn with those of others."""
    key: str
    """Names the folder."""
    folder: str
    tokens: int
    """Length of the longest text that it is given."""
    reads_policy: bool = False
    """It is given the token ids of the policy, and no text."""
    sampling: Mapping[str, GeneratingArguments] = field(default_factory=dict)
    """Sampling of its answers, by key; empty: it writes none."""
    engine: str = ""
    native: bool = True
    """It is asked by its chat template."""
    judges: str = ""
    """judge or `CLASSIFIER`, if it is one."""


def used_models(config: PPOConfig) -> list[UsedModel]:
    """Lists them, `actor_train`'s first, whose tokenizer is used, or that of the role in its place."""
    models, longest = list[UsedModel](), config.lengths().sequence
    for name, role in config.roles().items():
        key = f"{name}.model_args.model_name_or_path" if role.model_args.model_name_or_path else "pretrain"
        engine = role.strategy_args.strategy_name
        asked = _sampling(config) if name == "actor_infer" else {}
        native = config.actor_train.data_args.template == "native"
        models.append(UsedModel(name, key, config.model_folder(role), longest, True, asked, engine, native))
    for domain, reward in config.reward_configs.items() if config.has_engines else ():
        for name, model in reward.models.items():
            key, engine = f"rewards.{domain}.{name}", model.strategy_args.strategy_name
            asked = {f"{key}.generating_args": reward.judge.generating_args} if name == "judge" and reward.judge else {}
            folder, most = model.model_name_or_path, model.max_length
            models.append(UsedModel(key, f"{key}.model_name_or_path", folder, most, False, asked, engine, True, name))
    return models


def _sampling(config: PPOConfig) -> dict[str, GeneratingArguments]:
    named = {f"{set_key(name)}.generating_args": args for name, args in config.validation_sampling.items()}
    trained = {} if config.only_evaluates else {"actor_infer.generating_args": config.actor_infer.generating_args}
    return {**trained, **{key: args for key, args in named.items() if args not in trained.values()}}


@dataclass(slots=True)
class Fit:
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


class Models:
    """Folders that are there; each is read once."""

    def __init__(self, models: Sequence[UsedModel], tokenizers: Mapping[str, Any] | None = None) -> None:
        """`tokenizers`: those that are loaded, by folder."""
        self._models = models
        self._loaded = tokenizers or {}
        self._tokens: dict[str, FolderTokens] = {}
        self.fit = Fit()

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Tokens that end an answer of the policy, by its folder."""
        return self._of(self._models[0]).ends

    @property
    def known(self) -> int | None:
        """Token ids below this are known to all that are given the policy's, as far as their folders could be opened."""
        opened = [each for each in self._policy() if self._loaded.get(each.folder, each) is not None]
        return min((rows for each in opened if (rows := self._of(each).rows) is not None), default=None)

    def contract(self, sampling: GeneratingArguments) -> dict[str, object]:
        """Returns what the processes of a run must agree on: what the policy's token ids are, and which of them end an answer."""
        names = sorted((token, name) for name, token in self._of(self._models[0]).names.items())
        digest = hashlib.blake2b(json.dumps(names).encode(), digest_size=6).hexdigest()
        ends = self.ends if sampling.end_ids is None else sampling.end_ids
        shared: dict[str, object] = {"tokenizer of pretrain": f"{len(names):,} tokens ({digest})"}
        shared["tokens that end an answer"] = sorted(ends)
        from roll.strategies.vision.families import family_of  # which takes torch

        family = family_of(Path(self._models[0].folder))
        return shared if family is None else {**shared, "images of pretrain": family.places}

    def check(self) -> Fit:
        """Yields what does not fit. Raises `OSError`, `ValueError` for a folder that cannot be read."""
        for each in once(self._models):
            self._vocabulary(each, self._of(each))
            self._context(each)
            self._stored(each)
        for each in self._models:
            for key, args in each.sampling.items():
                self._ends(each, self._of(each), key, args)
        for each in once(self._policy())[1:]:
            self._same_tokens(each)
            self._same_places(each)
            if each.role in _SHARE or not each.role:
                self._same_shapes(each)
        return self.fit

    def _policy(self) -> list[UsedModel]:
        return [each for each in self._models if each.reads_policy]

    def _of(self, model: UsedModel) -> FolderTokens:
        folder = model.folder
        if folder not in self._tokens:
            self._tokens[folder] = folder_tokens(folder, self._loaded.get(folder))
        return self._tokens[folder]

    def _warn(self, key: str, value: object, message: str) -> None:
        self.fit.warnings.append(str(Note(key, value, message)))

    def _vocabulary(self, model: UsedModel, tokens: FolderTokens) -> None:
        for fault in tokens.faults:
            self._warn(model.key, model.folder, f"{fault}: it is not used")
        if unknown := tokens.unknown:
            message = (
                f"its tokenizer has {_count(unknown, 'token')} that its model does not know ({tokens.rows:,} are in its "
                f"embeddings), the first is {tokens.shown(tokens.names[unknown[0]])}: what has one is refused; "
                "model.resize_token_embeddings(len(tokenizer)) makes room"
            )
            self._warn(model.key, model.folder, message)

    def _ends(self, model: UsedModel, tokens: FolderTokens, key: str, args: GeneratingArguments) -> None:
        ids = f"{key}.eos_token_id"
        if args.end_ids is None:
            self._ends_of_folder(model, tokens, key, args)
            return
        if unknown := [end for end in args.end_ids if not tokens.knows(end)]:
            fix = f"ids below {tokens.rows}, or stop_strings"
            self.fit.problems.append(
                Problem(ids, args.eos_token_id, f"the model of {model.folder} has no token {unknown[0]}", fix)
            )
        missing = [end for end in tokens.ends if end not in args.end_ids]
        if missing and engine_of(model.engine).ends_by_folder:
            message = f"{model.engine} ends an answer at {tokens.shown(missing[0])}, too, by the folder {model.folder}"
            fix = f"{[*args.end_ids, *missing]}, or strategy_name: vllm"
            self.fit.problems.append(Problem(ids, args.eos_token_id, message, fix))

    def _ends_of_folder(self, model: UsedModel, tokens: FolderTokens, key: str, args: GeneratingArguments) -> None:
        for source, token in tokens.unknown_ends:
            self._warn(model.key, model.folder, f"{source} ends an answer at token {token}, which its model does not know")
        if not tokens.has_end and tokens.whole and not args.stop_strings:
            message = f"nothing ends an answer: no token of {model.folder}, by tokenizer, generation_config.json and config.json"
            fix = "eos_token_id: ID, or stop_strings; eos_token_id: [] if each answer is to have its full length"
            self.fit.problems.append(Problem(f"{key}.eos_token_id", None, message, fix))
        self._end_of_turn(model, tokens)
        ordinary = [end for end in tokens.ends if tokens.special and end not in tokens.special]
        for end in ordinary:
            by = " and ".join(tokens.named_ends[end])
            message = f"an answer ends at {tokens.shown(end)}, by {by}, and the tokenizer takes it for ordinary text"
            self._warn(model.key, model.folder, message)
        if len({token for source, token in tokens.named if source != PADDING}) > 1:
            told = ", ".join(f"{tokens.shown(end)} ({' and '.join(by)})" for end, by in tokens.named_ends.items())
            line = str(Note(model.key, model.folder, f"an answer ends at {told}"))
            self.fit.remarks += [line] if line not in self.fit.remarks else []

    def _end_of_turn(self, model: UsedModel, tokens: FolderTokens) -> None:
        """End of turn of its chat template, where that is one token. Only a tokenizer that is loaded tells."""
        tokenizer = self._loaded.get(model.folder)
        if not model.native or tokenizer is None or not tokenizer.chat_template:
            return
        with suppress(Exception):  # boundary: a template may raise anything; what a run gives it is tried elsewhere
            text = tokenizer.apply_chat_template(TURN, tokenize=False).partition(ANSWER)[2].strip()
            end = tokenizer(text, add_special_tokens=False)["input_ids"][0]
            if end in tokens.special and end not in tokens.ends:
                message = (
                    f"its chat template ends an answer with {tokens.shown(end)}, at which none ends: they end at "
                    f"{', '.join(map(tokens.shown, tokens.ends))}; generating_args.eos_token_id: {[*tokens.ends, end]} adds it"
                )
                self._warn(model.key, model.folder, message)

    def _context(self, model: UsedModel) -> None:
        if beyond := beyond_context(read_json(Path(model.folder) / CONFIG), model.tokens):
            self._warn(model.key, model.folder, f"a sequence may have {model.tokens:,} tokens, {beyond}")

    def _stored(self, model: UsedModel) -> None:
        """Compares the stored weights with the configuration."""
        files, config = weight_files(Path(model.folder)), read_json(Path(model.folder) / CONFIG)
        stored = _tensors(model.folder)
        odd = {tensor.dtype for name, tensor in stored.items() if name.endswith(".weight")} & _NO_NUMBERS
        if odd and not model.judges:
            message = (
                f"its weights are stored as {', '.join(sorted(odd))}, and config.json does not say how they are to be scaled"
            )
            self.fit.problems.append(Problem(model.key, model.folder, message, "the folder of the model that was quantised"))
        both = config.get("tie_word_embeddings") is True and {_HEAD, _EMBEDDINGS} <= stored.keys()
        if both and (stored[_HEAD] != stored[_EMBEDDINGS] or beginning(files, _HEAD) != beginning(files, _EMBEDDINGS)):
            message = f"config.json ties the head to the embeddings, but {_HEAD} is another tensor than {_EMBEDDINGS}"
            fix = "tie_word_embeddings: false in its config.json, or files without the one that does not count"
            self.fit.problems.append(Problem(model.key, model.folder, message, fix))

    def _same_tokens(self, model: UsedModel) -> None:
        """The policy's tokens mean the same to this one, and it knows them all."""
        first = self._policy()[0]
        ours, theirs = self._of(first), self._of(model)
        fix = f"a model with the tokenizer of {first.folder}"
        if ours.names and theirs.names:
            other = {token: name for name, token in theirs.names.items()}
            # To a teacher, which says how probable each is, one that it lacks means nothing.
            teaches = model.role.startswith(TEACHERS)
            known = [(token, name) for name, token in ours.names.items() if ours.knows(token)]
            differ = [(token, name) for token, name in known if other.get(token, None if teaches else name) != name]
            if differ:
                token, name = min(differ)
                here = f"{other[token]!r} here" if token in other else f"none here, of {len(theirs.names):,}"
                message = (
                    f"it is given the tokens of {first.folder}, and {_count(differ, 'token')} of {len(ours.names):,} "
                    f"{'is' if len(differ) == 1 else 'are'} another text to it: {token} is {name!r} there, {here}"
                )
                self.fit.problems.append(Problem(model.key, model.folder, message, fix))
                return
        if theirs.rows is None:
            return
        used = max((token for token in ours.names.values() if ours.knows(token)), default=-1)
        if used >= theirs.rows:
            message = f"its embeddings have {theirs.rows:,} tokens, and {first.folder} writes {ours.shown(used)}"
            self.fit.problems.append(Problem(model.key, model.folder, message, fix))
        elif ours.rows is not None and ours.rows > theirs.rows:
            message = (
                f"its embeddings have {theirs.rows:,} tokens and those of {first.folder} {ours.rows:,}: an answer with one that "
                "the tokenizer does not have, either, would end the run"
            )
            self._warn(model.key, model.folder, message)

    def _same_places(self, model: UsedModel) -> None:
        """An image has as many places in the policy's ids as it has features to this one."""
        from roll.strategies.vision.families import family_of, sees
        from roll.strategies.vision.family import PROCESSOR

        first = self._policy()[0].folder
        if not (sees(Path(first)) and sees(Path(model.folder))):
            return
        ours, theirs = (family_of(Path(folder)) for folder in (first, model.folder))
        if ours is not None and theirs is not None and ours.places != theirs.places:
            message = f"an image takes other places among its tokens than in {first}, whose ids it is given"
            fix = f"a model with the {PROCESSOR} of {first}"
            self.fit.problems.append(Problem(model.key, model.folder, message, fix))

    def _same_shapes(self, model: UsedModel) -> None:
        """Weights of the one are given to the other."""
        first = self._policy()[0]
        one, other = _tensors(first.folder), _tensors(model.folder)
        for name, tensor in other.items():
            if name in one and one[name].shape != tensor.shape:
                message = f"{name} is {list(tensor.shape)}, and {list(one[name].shape)} in {first.folder}: these models differ"
                self.fit.problems.append(Problem(model.key, model.folder, message, f"a model like {first.folder}"))
                return


_HEAD, _EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"
_NO_NUMBERS = {"I8", "U8", "F8_E4M3", "F8_E5M2"}
"""Types of stored weights that mean something only with scales beside them."""


def _tensors(folder: str) -> dict[str, StoredTensor]:
    """None where there are no files of weights, which is told elsewhere."""
    files = weight_files(Path(folder))
    return stored_tensors(files) if files else {}


def once(models: Sequence[UsedModel]) -> list[UsedModel]:
    """The first of each folder, and of each that is a classifier besides."""
    return list({(each.folder, each.judges == CLASSIFIER): each for each in reversed(models)}.values())[::-1]


def _count(found: Collection[object], what: str) -> str:
    return f"{len(found):,} {what}{'s' * (len(found) != 1)}"


def models_here(config: PPOConfig) -> Fit:
    """Yields what does not fit among the folders on this machine, before anything is loaded."""
    here = [model for each in used_models(config) for model in _here(each)]
    models = Models(here)
    try:
        return models.check() if here and here[0].reads_policy else models.fit
    except (OSError, ValueError) as error:
        models.fit.warnings.append(f"a run on this machine would be refused: {error}")
        return models.fit


def known_here(config: PPOConfig) -> int | None:
    """As `Models.known`, of the folders that are on this machine."""
    return Models([model for each in used_models(config) for model in _here(each)]).known


def _here(model: UsedModel) -> Iterator[UsedModel]:
    folder = cached(model.folder) if is_hub_name(model.folder) else Path(model.folder)
    if folder is not None and (folder / CONFIG).is_file():
        yield replace(model, folder=str(folder))

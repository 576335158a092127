"""`roll check --data`: the prompts of a configuration, before a run: counts, lengths, tags, some as the model gets them,
and the reward of each reference answer, taken as a response."""

from __future__ import annotations

import asyncio
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from roll.core.configs.arguments import DataArguments
from roll.core.configs.derived import derive
from roll.core.configs.problems import ConfigError, Problem
from roll.core.configs.rlvr import RLVRConfig
from roll.core.errors import boundary
from roll.prompts.hub import asks_the_hub, with_fetched_models

if TYPE_CHECKING:
    from roll.prompts.stored_rows import TokenizedRow

SHOWN, WORST = 3, 5
"""Most prompts shown, and most reference answers shown that earn less than the best."""


def inspected(config: RLVRConfig, graded: int) -> Iterator[dict[str, Any]]:
    """Yields the content of each file of prompts. Raises `ConfigError`."""
    if not asks_the_hub(config):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    config = with_fetched_models(config)
    for name, data in config.data_sources.items():
        yield _inspect(config, name, data, graded)


def _inspect(config: RLVRConfig, name: str, data: DataArguments, graded: int) -> dict[str, Any]:
    """Raises `ConfigError`."""
    from roll.prepare.fitting import opened
    from roll.prompts.chat_template import set_variables
    from roll.prompts.prompt_file import announced, read_rows
    from roll.prompts.prompt_source import tokenize_prompts
    from roll.strategies.run_models import known_here
    from roll.strategies.vision.expander import Expander

    derived, key = derive(config), f"{name}.data_args"
    source = data.path or ", ".join(data.files)
    tags = derived.tag_to_domain
    tokenizer = opened(config.model_folder(config.actor_train), "pretrain").tokenizer
    set_variables(tokenizer, config.actor_train.data_args.chat_template_kwargs)
    folder = config.model_folder(config.actor_train)
    try:
        with TemporaryDirectory() as kept:
            images = None if config.images_dir is None else Path(kept)
            expand = None if images is None else Expander(Path(folder), images)
            rows = read_rows(data, key, next(iter(tags)) if len(tags) == 1 else None, images)
            rows = announced(rows, f"prompts of {source}")
            length, known = derived.prompt_length, known_here(config)
            usable, skipped = tokenize_prompts(rows, tokenizer, data.template, length, tags, known=known, expand=expand)
            skipped.check(len(usable), length)
    except (OSError, ValueError) as error:
        of, fix = ("path" if data.path else "file_name"), getattr(error, "fix", "") or "mend the file, or name another one"
        raise ConfigError([Problem(f"{key}.{of}", source, str(error), fix)]) from error
    return {
        "name": name,
        "rows": len(usable) + sum(skipped.values()),
        "source": source,
        "left_out": skipped.told(derived.prompt_length) or f"none left out (prompt_length {derived.prompt_length})",
        "epoch_steps": len(usable) / config.rollout_batch_size if name == "actor_train" else None,
        "rollout_batch_size": config.rollout_batch_size,
        "domains": [_domain(config, domain, rows, graded) for domain, rows in sorted(usable.by_domain().items())],
        "examples": [
            {"id": row.id, "tag": row.tag, "tokens": len(row.input_ids), "ground_truth": row.ground_truth, "text": row.text}
            for row in usable.rows[:SHOWN]
        ],
    }


def _domain(config: RLVRConfig, domain: str, rows: Sequence[TokenizedRow], graded: int) -> dict[str, Any]:
    lengths = sorted(len(row.input_ids) for row in rows)
    cuts = quantiles(lengths, n=20, method="inclusive") if len(lengths) > 1 else lengths * 19
    told = {
        "domain": domain,
        "prompts": len(rows),
        "tags": dict(Counter(row.tag for row in rows).most_common()),
        "tokens": {"least": lengths[0], "median": cuts[9], "p95": cuts[18], "most": lengths[-1]},
    }
    if config.rewards[domain].models:
        return told | {"unknown": "is not known here: the model that judges is on a run's devices"}
    from roll.graders.references import Looked

    judged = rows[:graded]
    arguments = Looked(config.rewards[domain].reward_args)
    results, empty = asyncio.run(_judge(config, domain, judged, arguments))
    if results is None:
        return told | {"unknown": "is not known: the ground truth is what a response is held against, and no response"}
    return told | _earned(config, domain, judged, results, empty, arguments.unread)


def _earned(
    config: RLVRConfig,
    domain: str,
    judged: Sequence[TokenizedRow],
    results: Sequence[Any],
    empty: float | None,
    unread: Mapping[str, str],
) -> dict[str, Any]:
    from roll.graders.references import ReferenceRewards, oddities, success_at

    values = [result.value for result in results if result.value is not None]
    earned = ReferenceRewards(values, [result.error for result in results if result.error is not None], empty, unread=unread)
    chosen, best = config.rewards[domain].success_at, max(values, default=None)
    less = [(row, result) for row, result in zip(judged, results, strict=True) if result.value is None or result.value != best]
    return {
        "judged": len(judged),
        "earned": dict(Counter("an error" if each.value is None else f"{each.value:g}" for each in results).most_common()),
        "success_at": success_at(earned, chosen),
        "warnings": [*oddities(domain, earned, chosen), *one_for_all(domain, [row.ground_truth for row in judged])],
        "worst": [
            {"id": row.id, "reward": result.value, "error": result.error, "ground_truth": row.ground_truth}
            for row, result in less[:WORST]
        ],
    }


def one_for_all(domain: str, answers: Sequence[str]) -> Iterator[str]:
    """Yields a sentence where the most usual reference answer is right more often than a drawn one, by three standard errors."""
    counts, rows = Counter(answers), len(answers)
    (usual, count) = counts.most_common(1)[0]
    share, chance = count / rows, sum((each / rows) ** 2 for each in counts.values())
    if len(counts) > 1 and share - chance > 3 * math.sqrt(share * (1 - share) / rows):
        yield (
            f"rewards.{domain}: one answer for all prompts, {_short(usual)}, is that of {share:.0%} of them, and a drawn one of "
            f"{chance:.0%}: a model can learn it instead of the task"
        )


def as_text(told: Mapping[str, Any]) -> Iterator[str]:
    yield f"{told['name']}: {told['rows']:,} rows of {told['source']}; {told['left_out']}"
    if told["epoch_steps"] is not None:
        yield f"  an epoch is {told['epoch_steps']:.4g} steps of {told['rollout_batch_size']} prompts"
    for domain in told["domains"]:
        yield ""
        yield from _domain_text(domain)
    for row in told["examples"]:
        yield ""
        yield f"  {row['id']} ({row['tag']}), {row['tokens']} tokens, ground truth {_short(row['ground_truth'])}:"
        yield from (f"    | {line}" for line in row["text"].splitlines())
    yield ""


def _domain_text(told: Mapping[str, Any]) -> Iterator[str]:
    def listed(counts: Mapping[str, int], sign: str = "") -> str:
        return ", ".join(f"{name}{sign} {count:,}" for name, count in counts.items())

    tokens = told["tokens"]
    yield f"  {told['domain']}: {told['prompts']:,} prompts ({listed(told['tags'])})"
    middle = f"{tokens['median']:.0f} median, {tokens['p95']:.0f} in 95 of 100"
    yield f"    tokens: {tokens['least']} at least, {middle}, {tokens['most']} at most"
    if "unknown" in told:
        yield f"    what the reference answers earn {told['unknown']}"
        return
    answers = f"the reference answers of {told['judged']:,} prompts"
    yield f"    what {answers} earn as responses: {listed(told['earned'], ':')}"
    yield f"    a success is a reward of {told['success_at']:g} or more"
    yield from (f"    warning: {line}" for line in told["warnings"])
    for row in told["worst"]:
        earned = row["error"] or f"{row['reward']:g}"
        yield f"      {row['id']}: {earned} for {_short(row['ground_truth'])}"


async def _judge(
    config: RLVRConfig, domain: str, rows: Sequence[TokenizedRow], arguments: Mapping[str, Any]
) -> tuple[list[Any] | None, float | None]:
    """Returns the domain's rewards of the reference answers, None if they are no responses; and of an empty response. Raises
    `ConfigError`."""
    from roll.core.data.sample import Sample
    from roll.core.rewards.worker import worker_class

    reward = config.rewards[domain]
    block = asdict(reward) | {"policy": config.model_folder(config.actor_train), "reward_args": arguments}
    with boundary(lambda why: ConfigError([Problem(f"rewards.{domain}.worker_cls", reward.worker_cls, why)]), say=str):
        worker = worker_class(reward.worker_cls)(block)
        await worker.start()
    try:
        texts = [worker.solution(row.ground_truth) for row in rows]
        if None in texts:
            return None, None
        asked = [*((row, text or "") for row, text in zip(rows, texts, strict=True)), (rows[0], "")]
        samples = [Sample(row.prompt(0), 0, [], [], [], "stop", response_text=text) for row, text in asked]
        *results, empty = await worker.compute_rewards(samples)
        return results, empty.value
    finally:
        await worker.close()


def _short(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 60 else f"…{line[-59:]}")

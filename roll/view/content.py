"""The rollouts of a group as a page or a terminal shows them: side by side, with the figures of each token, and its text by the
tokenizer that the run trained with.

A model's text steers nothing: control characters and marks that turn the direction of writing are shown as escapes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roll.core.configs.redact import visible
from roll.core.data.untrusted import open_inside
from roll.core.errors import boundary
from roll.view.journal import Row, list_of, mapping, number, text, whole
from roll.view.samples import KeptGroup, Samples

MOST_TEXT = 2_000_000
"""Characters of one text that are shown."""
MOST_SAMPLES = 64
"""Rollouts of one group that are shown."""


def content(samples: Samples, group: KeptGroup, pieces: Pieces) -> dict[str, object]:
    """Raises `ValueError` or `OSError` if the file has them no more."""
    rows = [samples.row(group, kept) for kept in group.samples[:MOST_SAMPLES]]
    first = rows[0] if rows else {}
    facts = {"key": group.key, "step": group.step, "group_id": group.group_id, "uid": group.uid}
    facts |= {"domain": group.domain, "status": group.status, "reason": group.reason}
    return facts | {
        "prompt": shown_text(first.get("prompt")),
        "ground_truth": shown_text(first.get("ground_truth")),
        "rollouts": group.rollouts,
        "count": len(group.samples),
        "samples": [_sample(row, first, pieces) for row in rows],
    }


def first_rollout(samples: Samples, group: KeptGroup) -> dict[str, object]:
    """Returns one rollout of a group without its tokens, and the question. Raises as `content`."""
    row = samples.row(group, group.samples[0])
    facts = {"key": group.key, "step": group.step, "status": group.status, "reason": group.reason}
    said = {name: shown_text(row.get(name)) for name in ("response", "finish_reason")}
    found = said | {"reward": number(row.get("reward")), "turns": turns(mapping(row.get("trajectory")))}
    return facts | {"prompt": shown_text(row.get("prompt")), "ground_truth": shown_text(row.get("ground_truth")), "sample": found}


def shown_text(value: object) -> str:
    said = text(value)
    cut = f"\n[{len(said) - MOST_TEXT:,} more characters]" if len(said) > MOST_TEXT else ""
    return visible(said[:MOST_TEXT], keep="\n\t") + cut


def _sample(row: Row, first: Row, pieces: Pieces) -> dict[str, object]:
    parts, trajectory = row.get("reward_parts"), mapping(row.get("trajectory"))
    all_turns = turns(trajectory, exchanges=True)
    alone = bool(all_turns) and whole(trajectory.get("num_turns")) != len(all_turns)  # a turn that is a sample of its own
    found: dict[str, object] = {
        "index": whole(row.get("index")),
        "reward": number(row.get("reward")),
        "reward_parts": {shown_text(name): number(value) for name, value in parts.items()} if isinstance(parts, dict) else {},
        "finish_reason": shown_text(row.get("finish_reason")),
        "advantage": number(row.get("advantage")),
        "response": shown_text(row.get("response")),
        "tokens": _tokens(row, pieces),
        "turns": all_turns,
        "turn": whole(trajectory.get("first_turn")) if alone else None,
        "num_turns": whole(trajectory.get("num_turns")) if alone else None,
    }
    if row.get("prompt") != first.get("prompt"):  # a turn of an episode has a prompt of its own
        found["prompt"] = shown_text(row.get("prompt"))
    return found


def _tokens(row: Row, pieces: Pieces) -> dict[str, object]:
    """Returns columns, one value per token; a column that the file lacks is empty."""
    ids = [whole(one) or 0 for one in list_of(row.get("response_ids"))]
    names = {"logprobs": "behaviour_logprobs", "trainer": "trainer_logprobs", "advantages": "advantages"}
    figures = {name: [number(one) for one in list_of(row.get(key))][: len(ids)] for name, key in names.items()}
    mask = [one is True for one in list_of(row.get("loss_mask"))][: len(ids)]
    spans = [span for span in list_of(row.get("versions")) if isinstance(span, list) and len(span) >= 3]
    numbers = [[number(part) or 0 for part in span[:4]] for span in spans]
    words = [visible(piece) if piece.strip() else piece for piece in pieces.of(ids)]
    return {"ids": ids, "text": words, **figures, "mask": mask, "versions": numbers}


def turns(trajectory: Mapping[str, object], exchanges: bool = False) -> list[dict[str, object]]:
    """Returns the turns of an episode, as they can be shown. `exchanges`: with the messages between program and gateway for
    each."""
    return [
        {
            "observation": shown_text(turn.get("observation")),
            "action": shown_text(turn.get("action")),
            "reward": number(turn.get("reward")),
            "valid": turn.get("is_valid") is True,
            "effective": turn.get("is_effective") is True,
            "tokens": whole(turn.get("tokens")),
            **({"exchange": _exchange(turn["exchange"])} if exchanges and isinstance(turn.get("exchange"), Mapping) else {}),
        }
        for turn in list_of(trajectory.get("turns"))
        if isinstance(turn, Mapping)
    ]


def _exchange(exchange: Mapping[str, object]) -> dict[str, str]:
    repeats = mapping(exchange.get("repeats"))
    fields = ", ".join(f"{name} ({count})" for name, count in repeats.items() if name != "of")
    return {
        "path": shown_text(exchange.get("path")),
        "repeats": shown_text(f"without what it repeats of {repeats.get('of')}: {fields}") if repeats else "",
        **{name: _json(exchange.get(name)) for name in ("request", "answer")},
    }


def _json(value: object) -> str:
    """A text is the beginning of a value that was too long."""
    try:
        return shown_text(value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))
    except RecursionError:
        return "(nested too deeply to be shown)"


LARGEST = 256 << 20
"""Most bytes of a tokenizer file."""
HALF = "\N{REPLACEMENT CHARACTER}"
"""Decoding of a character whose other bytes are in the next tokens."""


class Pieces:
    def __init__(self, tokenizer: object | None) -> None:
        """Without a tokenizer a token is shown by its number."""
        self._tokenizer = tokenizer

    @property
    def unknown(self) -> bool:
        return self._tokenizer is None

    def of(self, ids: Sequence[int]) -> list[str]:
        """Returns a text for each token; together they are the text of all. A character of several tokens comes with the last of
        them, the others have empty texts."""
        if self._tokenizer is None:
            return [f"{one} " for one in ids]
        found, start, known = [], 0, ""
        for stop in range(1, len(ids) + 1):
            whole = self._decoded(ids[start:stop])
            if whole.endswith(HALF) and stop < len(ids) and stop - start < 32:
                found.append("")
                continue
            found.append(whole.removeprefix(known))
            if stop - start > 8:  # the last tokens decide how the next one is written, all before them do not
                start, known = stop - 1, self._decoded(ids[stop - 1 : stop])
            else:
                known = whole
        return found

    def _decoded(self, ids: Sequence[int]) -> str:
        try:
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))  # type: ignore[union-attr]
        except (OverflowError, TypeError):  # a number that is no token's
            return "".join(f"{one} " for one in ids)


def pieces(folder: Path, pretrain: str) -> Pieces:
    """`pretrain`: as in config.yaml."""
    checkpoints = sorted(folder.glob("checkpoints/step-*/trainer/model/tokenizer.json"), key=lambda path: -path.stat().st_mtime)
    for place in [(folder, str(path.relative_to(folder))) for path in checkpoints] + [(Path(pretrain), "tokenizer.json")]:
        try:
            with open_inside(*place) as file:
                contents = file.read(LARGEST + 1)
            if len(contents) <= LARGEST:
                return Pieces(_tokenizer(contents))
        except (OSError, ValueError):
            continue
    return Pieces(None)


def _tokenizer(contents: bytes) -> Any:
    """Raises `ValueError` if it is none."""
    from tokenizers import Tokenizer

    json.loads(contents)
    with boundary(ValueError, say=str):  # the library raises nothing narrower than Exception
        return Tokenizer.from_str(contents.decode())

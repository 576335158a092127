"""The verifiable instructions of IFEval (Zhou et al. 2023, arXiv:2311.07911), and those of the same kind that
open-instruct names as functions.

Each is a function of the response and of its arguments; all take time in proportion to the response. A sentence ends here with
a mark and white space, where the paper's code asks NLTK; upper and lower case are judged without asking for the language.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from roll.core.data.sample import Sample
from roll.core.rewards.worker import Grade, RewardWorker
from roll.graders.answers import answer_text

_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"[.!?]+[\"')\]]*(?=\s|$)")
_PLACEHOLDER = re.compile(r"\[([^\[\]\n]*)\]")
_HIGHLIGHT = re.compile(r"\*\*([^\n*]+)\*\*|\*([^\n*]+)\*")
_BULLET = re.compile(r"^[ \t]*(?:\*(?!\*)|-)([^\n]*)", re.MULTILINE)
_DIVIDER = re.compile(r"\s?\*\*\*\s?")
_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_POSTSCRIPTS = {"P.S.": r"p\.\s?s\.", "P.P.S": r"p\.\s?p\.\s?s"}
_SEPARATOR = "******"
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff\\s]+"
)
"""White space, and the other characters that nobody can see."""


def _shows(text: str) -> bool:
    """True if some character of it can be seen."""
    return _UNSEEN.fullmatch(text) is None and bool(text)


def _compared(count: int, relation: str, bound: int) -> bool:
    """`relation` in the words of either source."""
    if relation == "around":
        return abs(count - bound) <= max(round(bound * 0.1), 1)
    if relation not in ("less than", "at most", "at least"):
        raise ValueError(f"{relation!r} is no relation of an instruction")
    return {"less than": count < bound, "at most": count <= bound, "at least": count >= bound}[relation]


def _sentences(text: str) -> int:
    ends = [found.end() for found in _SENTENCE_END.finditer(text)]
    return len(ends) + bool(text[ends[-1] if ends else 0 :].strip())


def _contains_all(text: str, keywords: Sequence[str]) -> bool:
    lower = text.lower()
    return all(keyword.lower() in lower for keyword in keywords)


def _contains_none(text: str, words: Sequence[str]) -> bool:
    return not any(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) for word in words)


def _paragraphs(text: str, number: int) -> bool:
    parts = [part.strip() for part in _DIVIDER.split(text.strip())]
    inner = parts[1 if not parts[0] else 0 : len(parts) - (not parts[-1])]
    return all(map(_shows, inner)) and len(inner) == number


def _paragraph_begins(text: str, number: int, nth: int, word: str) -> bool:
    parts = [part.strip() for part in text.split("\n\n") if _shows(part)]
    if len(parts) != number or not 1 <= nth <= number:
        return False
    first = _WORD.search(parts[nth - 1])
    return first is not None and first[0].lower() == word.lower()


def _postscript(text: str, marker: str) -> bool:
    found = re.search(_POSTSCRIPTS.get(marker, re.escape(marker)), text, re.IGNORECASE)
    return found is not None and _shows(text[found.end() :].strip(" .:\n"))


def _highlights(text: str) -> int:
    return sum(_shows(one or other) for one, other in _HIGHLIGHT.findall(text))


def _filled(pattern: re.Pattern[str], text: str) -> int:
    """Counts the matches that show something between their marks, or behind them."""
    return sum(map(_shows, pattern.findall(text)))


def _sections(text: str, splitter: str, number: int) -> bool:
    return len(re.findall(rf"{re.escape(splitter.strip())}\s?\d+", text)) >= number


def _is_json(text: str) -> bool:
    inside = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```")
    try:
        json.loads(inside)
    except (ValueError, RecursionError):
        return False
    return True


def _title(text: str) -> bool:
    return any(_shows(line.partition("<<")[2].rpartition(">>")[0]) for line in text.splitlines())


def _two_responses(text: str) -> bool:
    parts = [part.strip() for part in text.strip().removeprefix(_SEPARATOR).removesuffix(_SEPARATOR).split(_SEPARATOR)]
    seen = [_UNSEEN.sub(" ", part).strip() for part in parts]
    return len(seen) == 2 and all(seen) and seen[0] != seen[1]


def _ends(text: str, phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(phrase.strip().lower())


def _quoted(text: str) -> bool:
    bare = text.strip()
    return bare[:1] == bare[-1:] == '"' and _shows(bare[1:-1])


def _capital_words(text: str) -> int:
    return sum(word.isupper() for word in _WORD.findall(text))


def _language(text: str, language: str) -> bool:
    """Asks langdetect, as the paper's code does. A text without letters is in no language."""
    from langdetect import DetectorFactory, LangDetectException, detect

    DetectorFactory.seed = 0
    try:
        return bool(detect(text) == language)
    except LangDetectException:
        return False


Check = Callable[..., bool]

IFEVAL: dict[str, Check] = {
    "keywords:existence": lambda text, keywords: _contains_all(text, keywords),
    "keywords:frequency": lambda text, keyword, frequency, relation: _compared(
        text.lower().count(keyword.lower()), relation, frequency
    ),
    "keywords:forbidden_words": lambda text, forbidden_words: _contains_none(text, forbidden_words),
    "keywords:letter_frequency": lambda text, letter, let_frequency, let_relation: _compared(
        text.lower().count(letter.lower()), let_relation, let_frequency
    ),
    "language:response_language": lambda text, language: _language(text, language),
    "length_constraints:number_sentences": lambda text, num_sentences, relation: _compared(
        _sentences(text), relation, num_sentences
    ),
    "length_constraints:number_paragraphs": lambda text, num_paragraphs: _paragraphs(text, num_paragraphs),
    "length_constraints:number_words": lambda text, num_words, relation: _compared(len(_WORD.findall(text)), relation, num_words),
    "length_constraints:nth_paragraph_first_word": lambda text, num_paragraphs, nth_paragraph, first_word: _paragraph_begins(
        text, num_paragraphs, nth_paragraph, first_word
    ),
    "detectable_content:number_placeholders": lambda text, num_placeholders: _filled(_PLACEHOLDER, text) >= num_placeholders,
    "detectable_content:postscript": lambda text, postscript_marker: _postscript(text, postscript_marker),
    "detectable_format:number_bullet_lists": lambda text, num_bullets: _filled(_BULLET, text) == num_bullets,
    "detectable_format:constrained_response": lambda text: any(answer in text for answer in _ANSWERS),
    "detectable_format:number_highlighted_sections": lambda text, num_highlights: _highlights(text) >= num_highlights,
    "detectable_format:multiple_sections": lambda text, section_spliter, num_sections: _sections(
        text, section_spliter, num_sections
    ),
    "detectable_format:json_format": lambda text: _is_json(text),
    "detectable_format:title": lambda text: _title(text),
    "combination:two_responses": lambda text: _two_responses(text),
    "combination:repeat_prompt": lambda text, prompt_to_repeat: text.strip().lower().startswith(prompt_to_repeat.strip().lower()),
    "startend:end_checker": lambda text, end_phrase: _ends(text, end_phrase),
    "startend:quotation": lambda text: _quoted(text),
    "change_case:capital_word_frequency": lambda text, capital_frequency, capital_relation: _compared(
        _capital_words(text), capital_relation, capital_frequency
    ),
    "change_case:english_capital": lambda text: text.isupper(),
    "change_case:english_lowercase": lambda text: text.islower(),
    "punctuation:no_comma": lambda text: "," not in text and "，" not in text,
}

OPEN_INSTRUCT: dict[str, Check] = {
    "verify_keywords": lambda text, keyword_list: _contains_all(text, keyword_list),
    "verify_keyword_frequency": lambda text, word, N: [w.lower() for w in _WORD.findall(text)].count(word.lower()) == N,
    "validate_forbidden_words": lambda text, forbidden_words: _contains_none(text, forbidden_words),
    "verify_letter_frequency": lambda text, letter, N: text.count(letter) == N,
    "validate_response_language": lambda text, language: _language(text, language),
    "verify_paragraph_count": lambda text, N: len(parts := text.strip().split("* * *")) == N and all(map(_shows, parts)),
    "validate_word_constraint": lambda text, N, quantifier: _compared(len(text.split()), quantifier, N),
    "verify_sentence_constraint": lambda text, N, quantifier: (
        abs(_sentences(text) - N) <= 1 if quantifier == "around" else _compared(_sentences(text), quantifier, N)
    ),
    "validate_paragraphs": lambda text, N, first_word, i: _paragraph_begins(text, N, i, first_word),
    "verify_postscript": lambda text, postscript_marker: _postscript(text, postscript_marker),
    "validate_placeholders": lambda text, N: _filled(_PLACEHOLDER, text) >= N,
    "verify_bullet_points": lambda text, N: _filled(_BULLET, text) == N,
    "validate_title": lambda text: _title(text),
    "validate_choice": lambda text, options: text.strip() in [option.strip() for option in options],
    "validate_highlighted_sections": lambda text, N: _highlights(text) >= N,
    "validate_sections": lambda text, N, section_splitter: text.count(section_splitter) == N,
    "validate_json_format": lambda text: _is_json(text),
    "validate_repeat_prompt": lambda text, original_prompt: text.startswith(original_prompt),
    "validate_two_responses": lambda text: _two_responses(text),
    "validate_uppercase": lambda text: text.isupper(),
    "validate_lowercase": lambda text: text.islower(),
    "validate_frequency_capital_words": lambda text, N, quantifier: (
        _capital_words(text) == N if quantifier == "around" else _compared(_capital_words(text), quantifier, N)
    ),
    "validate_end": lambda text, end_phrase: text.strip().endswith(end_phrase.strip()),
    "validate_quotation": lambda text: _quoted(text),
    "validate_no_commas": lambda text: "," not in text,
}


def follows(text: str, instruction: str, arguments: dict[str, object]) -> bool:
    """Arguments that are null, or that the instruction does not have, are left out, as data sets give every instruction all of
    them. A text of which nothing can be seen follows nothing. Raises `ValueError` for an instruction that is not there or lacks
    an argument."""
    check = IFEVAL.get(instruction) or OPEN_INSTRUCT.get(instruction)
    if check is None:
        raise ValueError(f"{instruction!r} is no instruction that can be verified")
    names = check.__code__.co_varnames[1 : check.__code__.co_argcount]
    given = {name: arguments[name] for name in names if arguments.get(name) is not None}
    if lacking := [name for name in names if name not in given]:
        raise ValueError(f"{instruction} lacks {', '.join(lacking)}")
    return _shows(text) and check(text, **given)


LONGEST = 200_000
"""Characters. A longer response follows nothing."""
Instruction = tuple[str, dict[str, Any]]


class GeneralRuleRewardWorker(RewardWorker):
    """`reward_args.reward_type`: strict (1 if all instructions are followed; the default), loose (the same, and each may be
    followed without the first or the last line or the asterisks), soft (the share that is followed)."""

    reads = frozenset({"reward_type"})

    def __init__(self, config: Mapping[str, object]) -> None:
        super().__init__(config)
        self._kind = self.reward_args.get("reward_type") or "strict"
        if self._kind not in ("strict", "loose", "soft"):
            raise ValueError(f"reward_args.reward_type: {self._kind!r} is none of strict, loose, soft")

    def grade(self, sample: Sample) -> Grade:  # type: ignore[override]  # in a thread: a response may be long
        answer = answer_text(sample.response_text).lstrip("\n")
        variants = list(_variants(answer)) if self._kind == "loose" else [answer]
        instructions = instructions_of(sample.prompt.row, sample.prompt.ground_truth)
        followed = [
            any([follows(text, name, arguments) for text in variants]) and len(answer) <= LONGEST
            for name, arguments in instructions
        ]
        share = sum(followed) / len(followed)
        return (share if self._kind == "soft" else float(all(followed))), {"followed": share}

    def solution(self, ground_truth: str) -> None:
        return None


def instructions_of(row: Mapping[str, object], ground_truth: str) -> list[Instruction]:
    """Reads the columns instruction_id_list and kwargs, as IFEval has them, in the row or as JSON in the ground truth; or a
    ground truth {"func_name": ..., arguments}. Raises `ValueError` if there is none."""
    given = row if row.get("instruction_id_list") else _parsed(ground_truth)
    for each in given if isinstance(given, list) else [given]:
        if not isinstance(each, Mapping):
            break
        if name := each.get("func_name"):
            return [(str(name), dict(each))]
        if names := _parsed(each.get("instruction_id_list") or each.get("instruction_id")):
            arguments = _parsed(each.get("kwargs")) or [{}] * len(names)
            return [(name, dict(of_name or {})) for name, of_name in zip(names, arguments, strict=True)]
    raise ValueError("the row has no instruction_id_list and the ground truth no func_name")


def _parsed(value: object) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _variants(text: str) -> Iterator[str]:
    """IFEval's eight: with or without the first line, the last line, and asterisks."""
    lines = text.split("\n")
    for part in (lines, lines[1:], lines[:-1], lines[1:-1]):
        joined = "\n".join(part).strip()
        yield from (joined, joined.replace("*", ""))

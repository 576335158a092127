"""Every row once an epoch, domains in proportion, and a cursor that continues exactly."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from roll.core.configs.arguments import CurriculumConfig
from roll.core.data.seeding import derive_seed
from roll.core.errors import PromptFileError
from roll.prompts.prompt_file import PromptRow
from roll.prompts.prompt_source import PromptSource, tokenize_prompts
from roll.prompts.stored_rows import TokenizedRow

SIZES = st.dictionaries(st.sampled_from(["code", "ifeval", "math", "science"]), st.integers(1, 7), min_size=1)


def rows_of(domain: str, count: int) -> list[TokenizedRow]:
    return [TokenizedRow(f"row/{i}", domain, "tag", f"text {i}", [i], str(i)) for i in range(count)]


def source_of(sizes: dict[str, int], shares: dict[str, float] | None = None, seed: int = 1) -> PromptSource:
    return PromptSource({domain: rows_of(domain, n) for domain, n in sizes.items()}, shares or {}, seed)


@given(sizes=SIZES, seed=st.integers(0, 2**40), epochs=st.integers(1, 3))
def test_every_row_is_served_once_in_every_epoch(sizes: dict[str, int], seed: int, epochs: int) -> None:
    source = source_of(sizes, seed=seed)
    served: dict[str, list[str]] = {domain: [] for domain in sizes}
    while any(len(served[domain]) < n * epochs for domain, n in sizes.items()):
        prompt = source.next()
        served[prompt.domain].append(prompt.uid)
    for domain, n in sizes.items():
        for epoch in range(epochs):
            expected = {f"{domain}/{epoch}/row/{i}" for i in range(n)}
            assert set(served[domain][epoch * n : (epoch + 1) * n]) == expected
    assert max(Counter(uid for uids in served.values() for uid in uids).values()) == 1


@given(shares=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=4), steps=st.integers(1, 200))
def test_domains_have_their_share_at_every_moment(shares: list[float], steps: int) -> None:
    names = "abcd"[: len(shares)]
    source = source_of(dict.fromkeys(names, 5), dict(zip(names, shares, strict=True)))
    counts: Counter[str] = Counter()
    for total in range(1, steps + 1):
        counts[source.next().domain] += 1
        for name, share in zip(names, shares, strict=True):
            ahead = counts[name] - total * share / sum(shares)
            assert -max(1, len(names) - 1) - 1e-9 <= ahead <= 1 + 1e-9


@settings(max_examples=60)
@given(sizes=SIZES, before=st.integers(0, 30), outstanding=st.integers(0, 8), seed=st.integers(0, 9))
def test_a_restored_source_serves_the_outstanding_first_and_continues_identically(
    sizes: dict[str, int], before: int, outstanding: int, seed: int
) -> None:
    source = source_of(sizes, seed=seed)
    served = [source.next() for _ in range(before)]
    waiting = served[::2][:outstanding]
    cursor: dict[str, Any] = json.loads(json.dumps(source.cursor(waiting)))
    expected = [*waiting, *(source.next() for _ in range(20))]

    restored = source_of(sizes, seed=seed)
    restored.restore(cursor)
    assert restored.cursor() == cursor
    assert [restored.next() for _ in range(20 + len(waiting))] == expected


def test_outstanding_prompts_come_first_in_order() -> None:
    source = source_of({"math": 9})
    outstanding = [source.next() for _ in range(4)]
    restored = source_of({"math": 9})
    restored.restore(source.cursor(outstanding))
    assert [restored.next() for _ in range(4)] == outstanding
    assert restored.next().uid not in {prompt.uid for prompt in outstanding}


def test_epochs_and_seeds_differ_in_order() -> None:
    def orders(seed: int) -> list[list[str]]:
        source = source_of({"math": 50}, seed=seed)
        return [[source.next().uid.split("/", 2)[2] for _ in range(50)] for _ in range(2)]

    (first, second), (other, _) = orders(1), orders(2)
    assert first != second and first != other
    assert orders(1) == [first, second]


HARD = st.lists(st.one_of(st.integers(-3, 3), st.floats(-2, 2)), min_size=1, max_size=12)


def curriculum_of(hard: list[float], seed: int = 1, **options: Any) -> PromptSource:
    rows = [replace(row, extra={"difficulty": number}) for row, number in zip(rows_of("math", len(hard)), hard, strict=True)]
    return PromptSource({"math": rows}, {}, seed, CurriculumConfig(**options))


@given(hard=HARD, seed=st.integers(0, 9), easiest=st.sampled_from(["low", "high"]), epochs=st.integers(1, 2))
def test_a_curriculum_serves_every_row_once_an_epoch_and_easy_ones_first(
    hard: list[float], seed: int, easiest: Any, epochs: int
) -> None:
    source = curriculum_of(hard, seed, easiest=easiest, epochs=epochs)
    for epoch in range(3):
        served = [source.next() for _ in hard]
        assert {prompt.uid for prompt in served} == {f"math/{epoch}/row/{i}" for i in range(len(hard))}
        if epoch < epochs:
            numbers = [float(prompt.row["difficulty"]) for prompt in served]
            assert numbers == sorted(numbers, reverse=easiest == "high")


@given(hard=HARD, before=st.integers(0, 30), spread=st.floats(0, 1))
def test_a_restored_curriculum_continues_identically(hard: list[float], before: int, spread: float) -> None:
    source = curriculum_of(hard, spread=spread, epochs=2)
    for _ in range(before):
        source.next()
    cursor = json.loads(json.dumps(source.cursor()))
    restored = curriculum_of(hard, spread=spread, epochs=2)
    restored.restore(cursor)
    assert [restored.next() for _ in range(20)] == [source.next() for _ in range(20)]


def test_a_spread_moves_prompts_no_further_than_it_says() -> None:
    source = curriculum_of(list(range(200)), spread=0.1)
    numbers = [int(source.next().row["difficulty"]) for _ in range(200)]
    assert numbers != sorted(numbers)
    assert max(abs(place - number) for place, number in enumerate(numbers)) <= 2 * 0.1 * 200


def test_a_curriculum_needs_a_number_of_every_prompt_and_its_own_checkpoint() -> None:
    with pytest.raises(ValueError, match=r"'difficulty' of prompt 'row/0' \(domain math\) is str 'hard', not a number"):
        curriculum_of(["hard"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"'difficulty' of prompt 'row/0' \(domain math\) is int 9+, not a number"):
        curriculum_of([int("9" * 400)])
    with pytest.raises(ValueError, match=r"'level' of prompt 'row/0' \(domain math\) is missing"):
        curriculum_of([1.0], column="level")
    with pytest.raises(ValueError, match="or curriculum"):
        curriculum_of([1.0, 2.0]).restore(curriculum_of([2.0, 1.0]).cursor())


def test_a_cursor_of_other_prompts_is_refused() -> None:
    cursor = source_of({"math": 5, "code": 5}).cursor()
    with pytest.raises(ValueError, match=r"domains \['code'\] are not those of the checkpoint"):
        source_of({"math": 5, "code": 6}).restore(cursor)
    with pytest.raises(ValueError, match="seed 1, not 2"):
        source_of({"math": 5, "code": 5}, seed=2).restore(cursor)


def test_shares_and_rows_must_meet() -> None:
    with pytest.raises(ValueError, match=r"no usable prompts for the domains \['code'\]"):
        source_of({"math": 1}, {"math": 0.5, "code": 0.5})
    with pytest.raises(ValueError, match=r"domains \['code'\] have no share"):
        source_of({"math": 1, "code": 1}, {"math": 1.0})


@given(st.lists(st.one_of(st.integers(), st.text()), max_size=4), st.lists(st.one_of(st.integers(), st.text()), max_size=4))
def test_seeds_are_of_63_bits_and_differ_with_their_parts(left: list[int | str], right: list[int | str]) -> None:
    assert 0 <= derive_seed(*left) < 2**63
    assert (derive_seed(*left) == derive_seed(*right)) == (left == right)


def test_seeds_are_the_same_in_every_process() -> None:
    assert derive_seed(42, "math/0/1", 3) == 5576205171616713975


def tokenizer(chat_template: str | None) -> PreTrainedTokenizerFast:
    """One token a word; a raw prompt starts with <s>."""
    vocabulary = {word: i for i, word in enumerate(["<unk>", "<s>", "user", "assistant", "one", "two"])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", bos_token="<s>", chat_template=chat_template)


CHAT = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}assistant{% endif %}"


def row(prompt: str | None, tag: str = "aime", messages: list[dict[str, Any]] | None = None) -> PromptRow:
    return PromptRow(f"id of {prompt}", tag, "2", prompt, messages, "p.jsonl:1", {"difficulty": 1})


def test_templates_decide_text_and_tokens() -> None:
    messages = [{"role": "user", "content": "two"}]
    for template, given_row, text, ids in [
        ("none", row("one two"), "one two", [1, 4, 5]),
        ("native", row("one two"), "user one two assistant", [2, 4, 5, 3]),
        ("native", row("one", messages=messages), "user two assistant", [2, 5, 3]),
        ("chatml", row("two"), "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n", [0, 0, 0]),
    ]:
        (read,), skipped = tokenize_prompts([given_row], tokenizer(CHAT), template, 9, {"aime": "math"})  # type: ignore[arg-type]
        assert (read.text, read.input_ids, read.domain, read.tag) == (text, ids, "math", "aime")
        assert not skipped and read.extra == {"difficulty": 1}


def test_long_prompts_are_skipped_and_counted() -> None:
    rows = [row("one " * n) for n in (1, 3, 4, 2, 5)]
    usable, skipped = tokenize_prompts(rows, tokenizer(None), "none", 4, {"aime": "math"})
    assert [len(read.input_ids) for read in usable] == [2, 4, 3]
    assert skipped == {"too_long": 2} and skipped.told(4) == "2 too long (prompt_length is 4, 6 would do)"
    assert list(usable.by_domain()) == ["math"]


def test_prompts_without_a_word_are_left_out() -> None:
    """A chat template makes tokens of them all the same."""
    usable, skipped = tokenize_prompts([row(" "), row("one")], tokenizer(CHAT), "chatml", 9, {"aime": "math"})
    assert len(usable) == 1 and skipped == {"empty": 1}


def test_what_cannot_be_rendered_is_named() -> None:
    domains = {"aime": "math", "gsm8k": "math"}
    with pytest.raises(PromptFileError, match=r"p.jsonl:1: tag 'amie' of row 'id of x' is in no .*; known: aime, gsm8k"):
        tokenize_prompts([row("x", tag="amie")], tokenizer(CHAT), "native", 9, domains)
    with pytest.raises(PromptFileError, match=r"no chat template$"):
        tokenize_prompts([row("x")], tokenizer(None), "native", 9, domains)
    with pytest.raises(PromptFileError, match=r"p.jsonl:1: template none needs a prompt column"):
        tokenize_prompts([row(None, messages=[{"role": "user", "content": "x"}])], tokenizer(CHAT), "none", 9, domains)
    with pytest.raises(PromptFileError, match=r"p.jsonl:1: template chatml needs a text as role and as content"):
        tokenize_prompts([row("x", messages=[{"role": "user", "content": ["x"]}])], tokenizer(None), "chatml", 9, domains)
    with pytest.raises(PromptFileError, match=r"p.jsonl:1: the tokenizer's chat template refuses the messages: .*no system"):
        tokenize_prompts([row("x")], tokenizer("{{ raise_exception('no system') }}"), "native", 9, domains)

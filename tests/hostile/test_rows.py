"""Rows of prompt files and words of environments: refused in one line that names file and row, or for one episode alone."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_models import numbered_tokenizer

from roll.core.configs.arguments import DataArguments
from roll.core.configs.problems import ConfigError
from roll.core.data.sample import Prompt, Sample, SampleGroup, Trajectory, Turn
from roll.core.errors import EnvFailure, PromptFileError
from roll.core.record.checkpoint import TRAINER, CheckpointStore
from roll.core.record.group_log import GroupLog, SampleLog
from roll.core.record.journal import JournalFile
from roll.core.record.journal import read_rows as read_journal
from roll.envs.host import EnvHost
from roll.envs.registry import make_env
from roll.prompts import tables
from roll.prompts.chat_template import render
from roll.prompts.prompt_file import PromptRow, read_rows
from roll.prompts.prompt_source import tokenize_prompts


def read(paths, columns=None, **options):
    """All rows of files."""
    return list(read_rows(replace(columns or DataArguments(), file_name=[str(path) for path in paths]), **options))


GOOD: dict[str, Any] = {"id": "a", "tag": "math", "prompt": "1+1=", "ground_truth": "2"}
HALF = "x\ud800"
LOW = "\udfffx"
CHAT = [{"role": "user", "content": "hello"}]


def row(**changes: Any) -> str:
    return json.dumps({**GOOD, "id": "b", **changes})


def raw(name: str, text: str) -> str:
    """A row with a column whose JSON is given."""
    return json.dumps({**GOOD, "id": "b"})[:-1] + f', "{name}": {text}}}'


SURROGATE = "lone surrogate"
ROWS: dict[str, tuple[str | bytes, str]] = {
    "half a character in the id": (row(id=HALF), f"'id' has the {SURROGATE} \\ud800 at character 1"),
    "half a character in the prompt": (row(prompt=HALF), f"'prompt' has the {SURROGATE}"),
    "half a character in the truth": (row(ground_truth=HALF), f"'ground_truth' has the {SURROGATE}"),
    "half a character in the tag": (row(tag=HALF), f"'tag' has the {SURROGATE}"),
    "the lower half": (row(prompt=LOW), f"{SURROGATE} \\udfff at character 0"),
    "halves in the wrong order": (row(prompt="\udc00\ud800"), SURROGATE),
    "half a character in a message": (row(messages=[{"role": "user", "content": HALF}]), "'messages' has the lone"),
    "half a character in a role": (row(messages=[{"role": HALF, "content": "x"}]), "'messages' has the lone"),
    "half a character in a part": (row(messages=[{"role": "user", "content": [{"text": HALF}]}]), "'messages' has the lone"),
    "half a character in a text of messages": (
        row(messages=json.dumps([{"role": "user", "content": HALF}])),
        "'messages' has the",
    ),
    "half a character in another column": (row(difficulty=[{"deep": HALF}]), "'difficulty' has the lone"),
    "half a character in a key": (row(extra={HALF: 1}), "'extra' has the lone"),
    "half a character in the name of a column": (row(**{HALF: 1}), "the name of column"),
    "lists without end": (raw("extra", "[" * 200_000 + "]" * 200_000), "nested too deep"),
    "mappings without end": (raw("extra", '{"a":' * 200_000 + "1" + "}" * 200_000), "nested too deep"),
    "lists that never close": (raw("extra", "[" * 200_000), "nested too deep"),
    "a row of brackets": ("[" * 200_000, "nested too deep"),
    "500 levels": (raw("extra", "[" * 500 + "]" * 500), "more than 64 levels"),
    "65 levels": (raw("extra", "[" * 65 + "]" * 65), "more than 64 levels"),
    "500 levels in the prompt": (raw("prompt", "[" * 500 + "]" * 500), "more than 64 levels"),
    "messages without end": (row(messages="[" * 200_000), "nested too deep"),
    "500 levels of messages": (row(messages="[" * 500 + "]" * 500), "more than 64 levels"),
    "a row of 50 MB": (row(prompt="1" * (50 << 20)), "more than 16,777,216 bytes"),
    "a prompt of 5 MB": (row(prompt="1" * (5 << 20)), "characters, more than"),
    "a message of 5 MB": (row(messages=[{"role": "user", "content": "1" * (5 << 20)}]), "characters, more than"),
    "many messages": (row(messages=[{"role": "user", "content": "1" * (1 << 20)}] * 5), "characters, more than"),
    "50 MB of spaces": (" " * (50 << 20), "more than 16,777,216 bytes"),
    "50 MB without a line end": ("x" * (50 << 20), "more than 16,777,216 bytes"),
    "no JSON": ("{", "not valid JSON"),
    "a number of 5000 digits": (raw("extra", "9" * 5000), "not valid JSON"),
    "bytes that are no text": (b'{"id": "\xff\xfe"}', "not valid JSON"),
    "NUL bytes": (b"\x00" * 100, "not valid JSON"),
    "a control character in a text": ('{"id": "a\x01"}', "not valid JSON"),
    "a number": ("5", "not a JSON object"),
    "null": ("null", "not a JSON object"),
    "a text": ('"x"', "not a JSON object"),
    "an empty object": ("{}", "neither"),
    "a prompt that is a list": (row(prompt=["x"]), "prompt is a list"),
    "a truth that is null": (row(ground_truth=None), "ground_truth is a null"),
    "an id that is a mapping": (row(id={}), "id is a JSON object"),
    "messages that are a mapping": (row(messages={"role": "user"}), "not a list"),
    "messages of numbers": (row(messages=[1]), "messages[0] is not a message"),
    "messages without a content": (row(messages=[{"role": "user"}]), "messages[0] is not a message"),
    "the same id": (json.dumps(GOOD), "is that of"),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_refused_by_file_and_number(tmp_path: Path, name: str) -> None:
    text, says = ROWS[name]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b"\n" + (text if isinstance(text, bytes) else text.encode()) + b"\n")
    with pytest.raises(PromptFileError) as caught:
        read([path])
    line = str(caught.value)
    assert line.startswith(f"{path}:2: ") and says in line and "\n" not in line and len(line) < 1000
    line.encode()


def test_a_whole_pair_of_halves_is_a_character(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "\\ud83d\\ude00", "tag": "t", "prompt": "p", "ground_truth": "g"}\n')
    assert read([path])[0].id == "\U0001f600"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: os.mkfifo(path), "is a FIFO, not a regular file"),
        (lambda path: path.mkdir(), "it is a folder, and has no file of prompts"),
        (lambda path: path.symlink_to("/dev/zero"), "is a device, not a regular file"),
        (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
        (lambda path: path.symlink_to("/nowhere/at/all"), "No such file"),
    ],
)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], Any], says: str) -> None:
    path = tmp_path / "rows.jsonl"
    make(path)
    with pytest.raises(PromptFileError, match=says) as caught:
        read([path])
    assert str(caught.value).startswith("data_args.file_name: cannot read")


def test_the_name_of_a_file_may_be_no_text(tmp_path: Path) -> None:
    """It would be the id of its rows."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl"))
    path.write_text(json.dumps({key: value for key, value in GOOD.items() if key != "id"}) + "\n")
    with pytest.raises(PromptFileError, match=SURROGATE):
        read([path])


# -- chat templates -----------------------------------------------------------------------------------------------------

LOOPS = "{% for x in range(99999) %}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% if messages[0].content == 'bad' %}" + LOOPS * 3 + "{% endfor %}" * 3 + "{% endif %}", "takes more than 2 s"),
        ("{{ messages[0].content }}{% if messages[0].content == 'bad' %}{{ 'x' * 10**8 }}{% endif %}", "writes 100,000,003"),
        ("{% if messages[0].content == 'bad' %}{{ 'x' * 10**12 }}{% endif %}", "refuses the messages: MemoryError"),
        ("{{ raise_exception('no\nway') if messages[0].content == 'bad' }}", "refuses the messages"),
        ("{% if messages[0].content == 'bad' %}\n{{ '\\ud800' }}{% endif %}", SURROGATE),
        ("{% if messages[0].content == 'bad' %}{{ ''.__class__.__mro__ }}{% endif %}", "refuses the messages: SecurityError"),
    ],
)
def test_a_template_that_does_not_end_names_the_row(template: str, says: str) -> None:
    tokenizer = numbered_tokenizer(5)
    tokenizer.chat_template = template
    rows = [PromptRow(str(i), "t", "1", text, None, f"file:{i}") for i, text in enumerate(("good", "bad", "good"), 1)]
    with pytest.raises(PromptFileError) as caught:
        render(rows, tokenizer, "native")
    assert str(caught.value).startswith("file:2: ") and says in str(caught.value)


def test_rendering_apart_is_what_the_tokenizer_does() -> None:
    tokenizer = numbered_tokenizer(5)
    tokenizer.chat_template = (
        "{{ eos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}\n{% endfor %}{{ messages | tojson }}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    rows = [PromptRow("a", "t", "1", " é\u2028\U0001f600 ", None, "f:1"), PromptRow("b", "t", "1", None, [*CHAT, *CHAT], "f:2")]
    expected = [
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        for messages in ([{"role": "user", "content": rows[0].prompt}], rows[1].messages)
    ]
    assert render(rows, tokenizer, "native") == expected
    assert tokenize_prompts(rows, tokenizer, "native", 512, {"t": "d"})[0].rows[1].text == expected[1]


# -- environments -------------------------------------------------------------------------------------------------------


class HalfSpoken:
    """Says half a character where it is told to."""

    instructions = ""

    def __init__(self, where: str = "") -> None:
        self.where = where
        self.instructions = self._text("instructions")

    def _text(self, here: str) -> str:
        return HALF if self.where == here else "fine"

    def _info(self, method: str) -> dict[str, Any]:
        return {"suffix": self._text(f"{method} suffix"), "state_key": self._text(f"{method} key"), "n": 1.0}

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        return (HALF if seed == 7 else self._text("reset")), self._info("reset")

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return self._text("step"), 0.0, False, False, self._info("step")

    def close(self) -> None:
        pass


@pytest.mark.parametrize("execution", ["inline", "thread"])
@pytest.mark.parametrize("where", ["reset", "step", "reset suffix", "step suffix", "reset key", "step key"])
def test_half_a_character_costs_the_episode_alone(where: str, execution: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roll.envs.registry.env_class", lambda *_: HalfSpoken)
    monkeypatch.setattr("roll.envs.host.env_class", lambda *_: HalfSpoken)

    async def play(host: EnvHost, config: dict[str, Any], seed: int = 0) -> None:
        env = await host.open("t", "half", config)
        await env.reset(seed)
        await env.step("x")

    async def main() -> None:
        host = EnvHost(execution)
        with pytest.raises(EnvFailure, match=SURROGATE):
            await play(host, {"where": where})
        with pytest.raises(EnvFailure, match=r"the observation of reset has the lone surrogate \\ud800"):
            await play(host, {}, seed=7)
        await play(host, {})
        assert host.failures == {"exception": 2}
        await host.close()

    asyncio.run(main())


def test_instructions_with_half_a_character_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roll.envs.registry.env_class", lambda *_: HalfSpoken)
    with pytest.raises(ConfigError, match=f"the instructions of half: the text has the {SURROGATE}"):
        make_env("half", {"where": "instructions"})


# -- journals and checkpoints: should such a text come by another way, it is written down ------------------------------------


def broken_group() -> SampleGroup:
    prompt = Prompt(HALF, [1], HALF, "t", "d", HALF, {HALF: [HALF]})
    turn = Turn(HALF, HALF, 0.0, HALF, True, True, 1)
    episode = Trajectory([turn], 0, 1, 0.0, False, "terminated")
    return SampleGroup(1, 0, prompt, [Sample(prompt, 0, [2], [0.0], [], "stop", HALF, 1.0, trajectory=episode)])


def test_journals_write_any_text(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path / "j.jsonl")
    texts = [HALF, LOW, "é\u2028\x00\x1b", "\U0001f600", "\ud83d\ude00"]
    for text in texts:
        journal.append({text: text, "list": [text]})
    journal.append({"é": "é"})
    found = [row["list"][0] for row in list(journal.rows())[: len(texts)]]
    assert found == [*texts[:-1], "\U0001f600"]
    assert "é".encode() in (tmp_path / "j.jsonl").read_bytes(), "what can be read stays readable"
    position = journal.position()
    journal.append({"text": HALF})
    assert journal.rewind(position) == 1

    samples = SampleLog(tmp_path, 1)
    assert samples.record(1, [broken_group()]) == 1
    assert next(iter(read_journal(tmp_path / "samples.jsonl")))["response"] == HALF
    GroupLog(tmp_path).write(group_id=1, prompt_uid=HALF, status="dropped", reason=HALF, step=1, start_version=0, lag=None)
    assert next(iter(GroupLog(tmp_path).rows()))["prompt_uid"] == HALF


def test_checkpoints_hold_any_text(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    (store.begin(1) / TRAINER / "weights").touch()
    store.commit(1, {"cursor": {"returned": [HALF]}}, [broken_group().to_json()])
    loaded = store.load(tmp_path / "step-1")
    assert SampleGroup.from_json(loaded.buffer[0]) == broken_group()
    assert loaded.state["cursor"]["returned"] == [HALF]


def test_the_limits_are_those_of_the_documentation() -> None:
    assert "16 MiB, 64 levels" in (Path(__file__).parents[2] / "SECURITY.md").read_text()
    assert tables.LARGEST_ROW == 16 << 20

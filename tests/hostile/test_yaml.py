"""YAML files that are small and stand for much, that refer to themselves, or that are none: one line, and nothing is built."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.cli.env import check as env_check
from roll.cli.main import main
from roll.core.configs.problems import ConfigError
from roll.prepare.compose import compose, load
from roll.prepare.yaml_files import origins

PROCESSOR_S = 2.0
"""For each file."""


def bomb(levels: int, width: int = 9) -> str:
    lines = ["a0: &a0 [x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


def flow(levels: int, of: str) -> str:
    return f"a: {of * levels}1{{}}".replace("{}", ("]" if of == "[" else "}") * levels) + "\n"


def block(levels: int) -> str:
    return "".join(f"{' ' * i}a:\n" for i in range(levels)) + " " * levels + "b: 1\n"


def doubling(levels: int) -> str:
    lines = ["t0: xxxxxxxxxx"]
    lines += [f"t{i}: ${{t{i - 1}}}${{t{i - 1}}}" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


def doubling_blocks(levels: int) -> str:
    lines = ["t0: {x: 1, y: 2}"]
    lines += [f"t{i}: {{x: ${{t{i - 1}}}, y: ${{t{i - 1}}}}}" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


FILES: dict[str, tuple[str | bytes, str]] = {
    "a bomb of lists": (bomb(9), "aliases expanded"),
    "a bomb of 30 levels": (bomb(30), "aliases expanded"),
    "a wide bomb": ("a: &a [" + "x, " * 2000 + "x]\nb: [" + "*a, " * 2000 + "*a]\n", "aliases expanded"),
    "a bomb of mappings": (
        "a0: &a0 {k: v}\n"
        + "".join(f"a{i}: &a{i} {{" + ", ".join(f"k{j}: *a{i - 1}" for j in range(9)) + "}\n" for i in range(1, 9)),
        "aliases expanded",
    ),
    "a bomb of merges": (
        "a0: &a0 {k: v}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}], k{i}: *a{i - 1}}}\n" for i in range(1, 30)),
        "aliases expanded",
    ),
    "an anchor inside itself": ("a: &a [*a]\n", "stands inside what it names"),
    "an anchor inside itself, deeper": ("a: &a {b: {c: [1, *a]}}\n", "stands inside what it names"),
    "a mapping inside itself": ("a: &a\n  b: *a\n", "stands inside what it names"),
    "the whole inside itself": ("&r\na: *r\n", "stands inside what it names"),
    "a key inside itself": ("a: &a {? *a : 1}\n", "stands inside what it names"),
    "two anchors in a circle": ("a: &a [&b [*a, *b]]\n", "stands inside what it names"),
    "an alias of nothing": ("a: *nothing\n", "nothing"),
    "aliases that nest deep": (
        "".join(f"a{i}: &a{i} [" + (f"*a{i - 1}" if i else "x") + "]\n" for i in range(60)),
        "levels deep",
    ),
    "2000 lists": (flow(2000, "["), "level"),
    "2000 mappings": (flow(2000, "{a: "), "levels deep"),
    "2000 blocks": (block(2000), "levels deep"),
    "200,000 lists": (flow(200_000, "["), ""),
    "200,000 open lists": ("a: " + "[" * 200_000, ""),
    "2000 dashes": ("a:\n " + "- " * 2000 + "x\n", "levels deep"),
    "60 levels": (block(60), "levels deep"),
    "300,000 keys": ("".join(f"k{i}: 1\n" for i in range(300_000)), "entries"),
    "300,000 entries": ("a: [" + "1," * 300_000 + "1]\n", "entries"),
    "5 MB of a comment": ("# " + "x" * (5 << 20) + "\na: 1\n", "bytes"),
    "5 MB of a text": ("a: " + "x" * (5 << 20) + "\n", "bytes"),
    "5 MB of line ends": ("\n" * (5 << 20), "bytes"),
    "texts that double": (doubling(40), "characters"),
    "blocks that double": (doubling_blocks(30), ""),
    "a reference to itself": ("a: ${a}\n", "refers to itself"),
    "references in a circle": ("a: ${b}\nb: ${c}\nc: x${a}\n", "refers to itself"),
    "a reference into itself": ("a: {b: '${a}'}\n", "refers to itself"),
    "a relative reference to itself": ("a: {b: '${.b}'}\n", "refers to itself"),
    "1000 references in a row": ("".join(f"a{i}: ${{a{i + 1}}}\n" for i in range(1000)) + "a1000: 1\n", "references in a row"),
    "a reference to nothing": (
        "a: 1\nb: ${nothing}\n",
        "run.yaml:2: b = '${...}': Interpolation key 'nothing' not found; fix: give",
    ),
    "a reference without end": ("a: '${b'\n", "run.yaml:1: a = '${...}': no viable alternative at input '${b'; fix: ${key}"),
    "references inside references": ("a: '" + "${" * 500 + "b" + "}" * 500 + "'\n", ""),
    "an unknown resolver": ("a: ${evil:1}\n", "evil"),
    "an object of Python": ("a: !!python/object/apply:os.system ['true']\n", "python/object"),
    "a name of Python": ("a: !!python/name:os.system\n", "python/name"),
    "an unknown tag": ("a: !evil 1\n", "evil"),
    "a class for Hydra, in a list of defaults": ("defaults: [{_target_: os.system}]\n", ""),
    "defaults that are a number": ("defaults: 5\n", ""),
    "defaults that are a mapping": ("defaults: {a: b}\n", ""),
    "defaults that are lists": ("defaults: [[run]]\n", ""),
    "defaults that are numbers": ("defaults: [1, 2]\n", ""),
    "a default that is not there": ("defaults: [absent@_here_]\n", "absent"),
    "a file that includes itself": ("defaults: [run]\n", "in a circle"),
    "a file that includes itself elsewhere": ("defaults: [run@a, run@b]\n", "in a circle"),
    "a default outside": ("defaults: [../../../../../../etc/passwd@_here_]\n", ""),
    "the same key twice": ("a: 1\na: 2\n", "duplicate"),
    "a list": ("- 1\n", ""),
    "a list that is not closed": ("a: [1\n", "is not valid YAML"),
    "a tab": ("a:\n\tb: 1\n", "is not valid YAML"),
    "NUL bytes": (b"a: \x00\n", "is not valid YAML"),
    "bytes that are no text": (
        b"a: 1\nb: \xff\xfe\n",
        "run.yaml:2: config_name = 'run.yaml': is not valid YAML: byte 0xff is no UTF-8; fix:",
    ),
    "UTF-16": ("a: 1\n".encode("utf-16"), "is not valid YAML"),
    "an octal number": ("a: 1\nseed: 010\n", "010 is the number 8 to YAML 1.1; fix: 8, or '010' for a text"),
    "a number of base 60": ("rpc_timeout: 1:30:00\n", "1:30:00 is the number 5400 to YAML 1.1; fix: 5400"),
    "a Latin-1 text": (
        "a: 1\nexp_name: l\xe9o\n".encode("latin-1"),
        "run.yaml:2: config_name = 'run.yaml': is not valid YAML: byte 0xe9",
    ),
    "a reference into a number": ("a: 5\nb: ${a.c}\n", "run.yaml:2: b = "),
    "a reference to an entry that is not there": ("a: [1]\nb:\n  c: ${a[3]}\n", "run.yaml:3: b.c = "),
    "a reference to a resolver of Hydra's": ("a: ${hydra:runtime.cwd}\n", ""),
    "a mandatory value": ("a: ???\n", "a"),
    "two documents": ("a: 1\n---\nb: 2\n", ""),
    "a number of 10,000 digits": ("a: " + "9" * 10_000 + "\n", ""),
    "a key that is a list": ("? [1, 2]\n: 3\n", ""),
    "a key that is a mapping": ("? {a: 1}\n: 3\n", ""),
}


def one_line(call: Callable[[], Any]) -> str:
    began = resource.getrusage(resource.RUSAGE_SELF)
    with pytest.raises(ConfigError) as caught:
        call()
    ended = resource.getrusage(resource.RUSAGE_SELF)
    used = ended.ru_utime - began.ru_utime + ended.ru_stime - began.ru_stime
    assert used < PROCESSOR_S, f"{used:.1f} s of processor time"
    (line,) = str(caught.value).splitlines()
    assert len(line) < 2000
    return line


@pytest.mark.parametrize("name", FILES)
def test_refused_in_one_line(tmp_path: Path, name: str) -> None:
    content, says = FILES[name]
    (tmp_path / "run.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert says in one_line(lambda: compose(tmp_path, "run"))
    one_line(lambda: load(tmp_path, "run"))
    origins(tmp_path, "run")


@pytest.mark.parametrize("name", ["a bomb of lists", "an anchor inside itself", "2000 lists", "a list that is not closed"])
def test_included_files_have_the_same_limits(tmp_path: Path, name: str) -> None:
    content, says = FILES[name]
    assert isinstance(content, str)
    (tmp_path / "run.yaml").write_text("defaults: [parts/part@_here_, _self_]\nb: 1\n")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "part.yaml").write_text(content)
    line = one_line(lambda: compose(tmp_path, "run"))
    assert says in line and "parts/part.yaml" in line


def test_files_that_include_each_other_again_and_again(tmp_path: Path) -> None:
    for i in range(15):
        inner = f"defaults: [f{i + 1}@x, f{i + 1}@y]\n" if i < 14 else ""
        (tmp_path / f"f{i}.yaml").write_text(f"{inner}a: 1\n")
    assert "more than 200 files" in one_line(lambda: compose(tmp_path, "f0"))


@pytest.mark.parametrize("where", ["run.yaml", "part.yaml"])
def test_a_fifo_is_not_read(tmp_path: Path, where: str) -> None:
    (tmp_path / "run.yaml").write_text("defaults: [part@_here_]\n")
    (tmp_path / "part.yaml").write_text("a: 1\n")
    (tmp_path / where).unlink()
    os.mkfifo(tmp_path / where)
    one_line(lambda: compose(tmp_path, "run"))


def test_aliases_within_the_limits_are_what_they_stand_for(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("a: &a {k: [1, 2]}\nb: {<<: *a, l: *a}\nc: ${b.l.k}\n")
    composed = compose(tmp_path, "run")
    assert composed["b"] == {"k": [1, 2], "l": {"k": [1, 2]}} and composed["c"] == [1, 2]


def test_a_missing_variable_names_file_line_and_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)
    (tmp_path / "run.yaml").write_text("a: 1\nb:\n  c: ${oc.env:NO_SUCH_VARIABLE}\n")
    line = one_line(lambda: compose(tmp_path, "run"))
    assert line.startswith("run.yaml:3: b.c = ") and "NO_SUCH_VARIABLE is not set" in line
    assert "${oc.env:NO_SUCH_VARIABLE,default}" in line
    (tmp_path / "run.yaml").write_text("b: ${oc.env:NO_SUCH_VARIABLE,5}\n")
    assert compose(tmp_path, "run")["b"] in (5, "5")


EXAMPLES = str(Path(__file__).parents[2] / "examples" / "config")


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31mb", "a\rb", "a\u202eb", "a\x00b", "a/b", "..", "", "a\u2028b"])
def test_names_of_runs_have_no_control_characters(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for file in Path(EXAMPLES).glob("*.yaml"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    changed = yaml.safe_load((tmp_path / "rlvr_config.yaml").read_text()) | {"exp_name": name}
    (tmp_path / "rlvr_config.yaml").write_text(yaml.safe_dump(changed))
    assert main(["check", "--config_path", str(tmp_path), "--config_name", "rlvr_config"]) == 1
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(told) == 1 and "exp_name" in told[0] and told[0].isprintable()


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "--config_path", "{folder}", "--config_name", "bomb"],
        ["train", "rlvr", "--config_path", "{folder}", "--config_name", "bomb"],
        ["train", "agentic", "--local", "--config_path", "{folder}", "--config_name", "bomb"],
        ["play", "--model", "x", "--run", "{folder}"],
        ["play", "--model", "x", "--env", "frozen_lake", "size=[1"],
        ["check", "--config_path", "{folder}", "--config_name", "good", "a=[1"],
        ["check", "--config_path", "{folder}", "--config_name", "good", "a=${oc.env:NO_SUCH_VARIABLE}"],
        ["check", "--config_path", "{folder}", "--config_name", "good", "a\x1b[2J=1"],
        ["check", "--config_path", "{folder}", "--config_name", "go\rod"],
    ],
)
def test_commands_say_one_line(tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bomb.yaml").write_text(bomb(20))
    (tmp_path / "config.yaml").write_text(bomb(20))
    (tmp_path / "good.yaml").write_text("b: 1\n")
    assert main([each.replace("{folder}", str(tmp_path)) for each in arguments]) in (1, 2)
    told = [line for line in capsys.readouterr().err.split("\n") if line.startswith("error: ")]
    assert told and all(line.isprintable() for line in told)


def test_a_configuration_of_an_environment_that_is_no_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    assert env_check(["frozen_lake", "--config", "size=[1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and "is not valid YAML" in line

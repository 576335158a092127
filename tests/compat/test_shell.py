"""Words of a shell script, filled in as a shell does, and nothing run."""

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.compat.shell.expansion import unknown_in
from roll.compat.shell.script import commands_of
from roll.core.errors import Fixable


def words(text, **environment):
    """The words of the commands `run ...`."""
    found = commands_of(text, "a.sh", environment, lambda command: bool(command) and command[0].text == "run")
    return [[each.text for each in command[1:]] for command in found]


SCRIPTS = [
    "a=1; b='x y'\nrun $a \"$b\" $b '$a'",
    "run a\\\n  b \\\n c # not this\n",
    'run ${A:-1} ${A-2} "${B:+x}" ${B+x}${B:+x} ${C:=d} $C end',
    'A=(1 "b c")\nA+=(d)\nrun "${A[@]}" ${A[@]} "${#A[@]}" ${A[1]} "x${A[@]}y"',
    'A=()\nrun "${A[@]}" "" "$@" end',
    "n=3; m=$((n * 2 + 1)); run $m $(((n + m) * 2)) $((m / 2)) $((m % 4)) $((-n))",
    "n=-7; run $((n / 2)) $((n % 3)) $((7 / -2)) $((7 % -3)) $((n / -2))",
    'if [ "$X" = a ]; then y=1; elif [ -z "$X" ]; then y=2; else y=3; fi\nrun $y',
    'x=b\ncase "$x" in a|c) y=1 ;; b) y=2; z=3;; *) y=4 ;; esac\nrun $y $z',
    "[ 1 -lt 2 ] && a=1 || a=2\nrun $a",
    "if [[ a == a* && -n x ]] && { [ 1 = 2 ] || [ 3 = 3 ]; }; then run yes; else run no; fi",
    'p=/a/b.c.d\nrun ${p##*/} ${p%.*} ${p%%.*} ${p#*/} "${p/b/x}" ${p//./-}',
    "run a=['x','y'] '[\"console\",\"wandb\"]' 2>&1 | tee log",
    "cat <<EOF\nrun not\nEOF\nrun $(basename /a/b) $(echo 1 2) `dirname /a/b`",
    'run "$(cd -- "$(dirname "/usr/bin")" >/dev/null 2>&1 && pwd)"',
    "export A=1 B=2\ndeclare -r C=3\nrun $A$B$C",
    "f() { run never; }\nfunction g { run never; }\nrun last",
    "f() { x=$((x + 1)); if [ $x -lt 3 ]; then run $x; fi; }\nx=1; f; f; run $x",
    'function main() {\n  run a \\\n  b\n}\nmain "$@"',
    "a=x\na+=y\nb=$a\"$a\"'z'\nrun $b ${b^^} ${#b}",
    "! [ a = b ] && run ok\nif ! [ a = a ]; then run no; fi",
    "set -xeuo pipefail; true; : ${D:=4}; run $D",
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_words_are_those_of_bash(script):
    """The command prints its words, one a line between marks."""
    shown = f'run() {{ printf "<"; printf "[%s]" "$@"; echo ">"; }}\nset +e\n{script.replace("| tee log", "")}'
    ran = subprocess.run(["bash", "-c", shown.replace("set -xeuo", "set -uo")], capture_output=True, text=True, timeout=20)
    theirs = "".join(line + "\n" for line in ran.stdout.splitlines() if line.startswith("<"))
    ours = "".join(f"<{''.join(f'[{word}]' for word in line) or '[]'}>\n" for line in words(script))
    assert ours == theirs, ran.stderr


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("run $HOST_NAME", "HOST_NAME"),
        ("x=$(curl http://a)\nrun a=$x", "curl http://a"),
        ("x=1\nif python -c 'import y'; then x=2; fi\nrun $x", "the condition in line 2"),
        ("case $(uname) in Linux) x=1 ;; *) x=2 ;; esac\nrun $x", "uname"),
        ("for i in 1 2; do x=$i; done\nrun $x", "the loop in line 1"),
        ("ping a && x=1\nrun $x", "before && in line 1"),
        ("run $((1 + y.z))", "no sum of whole numbers"),
    ],
)
def test_what_is_unknown_is_named(script, why):
    ((word,),) = words(script)
    assert why in unknown_in(word)


def test_what_is_unknown_is_no_matter_where_it_is_not_needed():
    assert words("x=$(curl a)\nif wget b; then z=1; else z=2; fi\nrun ${y:-3}") == [["3"]]
    assert words("x=${X:-$(curl a)}\nrun $x", X="4") == [["4"]]


@pytest.mark.parametrize(
    ("script", "line", "says"),
    [
        ("if curl a; then\n run x\nfi", 2, "the condition in line 1"),
        ("run a \\ \ndata.x=1", 2, "data.x=1 stands alone"),
        ("\nrun 'a", 2, "has no end"),
        ("if true; then run a", 1, "ends inside"),
        ("x=abcdefgh\n" + "x=$x$x$x$x$x$x$x$x\n" * 9, 7, "x has more than"),
        ("f() { f; }\nf", 1, "nested too deep"),
        ("run " + "$(" * 9000 + ")" * 9000, 1, "nested too deep"),
    ],
)
def test_what_cannot_be_read_is_told_by_its_line(script, line, says):
    with pytest.raises(Fixable) as caught:
        words(script)
    assert str(caught.value).startswith(f"line {line}: ") and says in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from(" \n\t'\"$(){}[];&|<>=#\\a1.-+if`"), max_size=40))
def test_any_text_is_read_or_refused(text):
    try:
        words(text)
    except Fixable as error:
        assert str(error) and error.fix


def test_nothing_is_run(tmp_path):
    file = tmp_path / "made"
    words(f"touch {file}\nx=$(touch {file})\ny=`touch {file}`\nrun a$x$y")
    assert not file.exists()

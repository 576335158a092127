"""Episodes of real programs: what they are told, what they may cost, and what becomes of what they did."""

import asyncio
import os
import select
import signal
import venv
from pathlib import Path

import psutil
import pytest
from living import command_lines, lives

from roll.core.errors import EpisodeFailed, Unanswered
from roll.envs.program import process
from roll.envs.program.process import Starter

ASKS_TWICE = "said = ask('one')\nopen('said.txt', 'w').write(said)\nask('two')"


def test_an_episode_is_what_the_program_asked_and_a_function_says_what_it_earned(play):
    one, two = play(ASKS_TWICE)
    assert [sample.trajectory.turns[0].action for sample in (one, two)] == ["first", "second!"]
    assert [sample.reward for sample in (one, two)] == [7.0, 7.0] and two.trajectory.success is True
    assert two.trajectory.metrics == {"conversations": 2, "rendered_anew": 0, "calls": 2, "seed": 11, "written": 1}
    assert (one.prompt.uid, one.prompt.row, one.index) == ("train/shop/3", {"env_seed": 11}, 1)
    assert [turn.reward for sample in (one, two) for turn in sample.trajectory.turns] == [0.0, 7.0]
    assert one.trajectory.end == "terminated" and one.trajectory.environment_s > 0


def test_a_program_knows_its_episode_and_no_secret_of_the_runs(play, monkeypatch):
    monkeypatch.setenv("MY_SECRET_TOKEN", "hidden")
    code = """
    names = sorted(name for name in os.environ if not name.startswith("LC_"))
    assert "MY_SECRET_TOKEN" not in names and os.environ["OWN"] == "given", names
    assert os.environ["ROLL_SEED"] == "11" and "ROLL_REWARD_KEY" not in names
    assert os.environ["HOME"] == os.environ["TMPDIR"] and os.listdir(os.environ["HOME"]) == []
    assert os.listdir() == ["agent.py"] and sys.argv[1:] == ["$HOME; a", "b"]
    ask("one")
    """
    command = ["python", "agent.py", "$HOME; a", "b"]
    (sample,) = play(code, command=command, environment={"OWN": "given"})
    assert sample.reward == len("first")


def test_the_set_up_comes_first_and_the_folder_that_was_given_stays_as_it_was(play, tmp_path):
    setup = ["python", "-c", "open('made', 'w').write('x'); import os; assert 'OPENAI_API_KEY' not in os.environ"]
    (sample,) = play("assert open('made').read() == 'x'\nask('one')", setup=setup)
    assert sample.reward == 5.0 and sorted(os.listdir(tmp_path / "given")) == ["agent.py"]


def test_a_preloaded_interpreter_may_be_another_one_and_its_script_finds_it_as_it_is(play, tmp_path):
    """With nothing installed, and nothing of this project to be seen."""
    venv.create(tmp_path / "other", with_pip=False, symlinks=True)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "mine.py").write_text("import os\nimported_by, mood = os.getpid(), os.environ['MOOD']")
    code = """
    import mine
    assert mine.imported_by != os.getpid() and mine.mood == "good"
    assert sys.prefix == os.environ["PREFIX"] and sys.argv == ["agent.py", "word"] and __name__ == "__main__"
    assert sys.path[0] == os.getcwd() and not [name for name in sys.modules if name.startswith("roll")]
    try:
        import roll
    except ImportError:
        ask("one")
    """
    python, environment = str(tmp_path / "other" / "bin" / "python"), {"MOOD": "good", "PREFIX": str(tmp_path / "other")}
    environment["PYTHONPATH"] = str(tmp_path / "lib")
    command = ["python", "agent.py", "word"]
    (sample,) = play(code, python=python, preload=["mine"], environment=environment, command=command)
    assert sample.reward == len("first")


@pytest.mark.parametrize("last", ["0.5", '{"reward": 0.5, "success": true, "lines": 3}'])
def test_a_command_may_say_the_reward(play, last):
    code = "import json, os; t = json.load(open(os.environ['ROLL_TRACE'])); assert t['calls'] == 2; print('told'); "
    scoring = ["python", "-c", f"{code}print({last!r})"]
    samples = play(ASKS_TWICE, reward="command", scoring=scoring)
    assert {sample.reward for sample in samples} == {0.5}
    assert samples[0].trajectory.success is (True if "success" in last else None)


def test_the_program_may_post_the_reward(play):
    (sample,) = play("ask('one')\nreward(0.75)", reward="posted", env={"success_at": 0.7})
    assert sample.reward == 0.75 and sample.trajectory.success is True


def test_rewards_of_single_calls_are_enough_and_add_up(play):
    code = """
    for text in ("one", "two"):
        body = {"messages": [{"role": "user", "content": text}]}
        said = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", os.environ["OPENAI_API_KEY"], body)
        post(os.environ["ROLL_REWARD_URL"], os.environ["ROLL_REWARD_KEY"], {"value": 0.25, "call_id": said["id"]})
    """
    samples = play(code, reward="posted")
    assert [sample.reward for sample in samples] == [0.5, 0.5]
    assert [turn.reward for sample in samples for turn in sample.trajectory.turns] == [0.25, 0.25]


def test_a_coroutine_may_say_the_reward(play):
    assert play("ask('one')", reward="programs_under_test.later")[0].reward == 0.5


@pytest.mark.parametrize(
    ("code", "program", "kind", "said"),
    [
        ("", {}, "no_calls", "without an answer"),
        ("reward(1.0)", {"reward": "posted"}, "no_calls", "without an answer"),
        ("ask('one')", {"reward": "posted"}, "no_reward", "ended without a reward"),
        (
            "ask('one')\ntry:\n    reward('good')\nexcept Exception:\n    pass",
            {"reward": "posted"},
            "no_reward",
            "was refused: value must",
        ),
        ("ask('one')\nprint('last words')\nsys.exit(3)", {}, "exit", "exit code 3; its output ends with:\nlast words"),
        ("ask('one')\nraise ValueError('own')", {}, "exit", "ValueError: own"),
        ("ask('one')\nos.kill(os.getpid(), 9)", {}, "exit", "after 1 answers, ended with signal 9"),
        ("ask('one')", {"setup": ["python", "-c", "import sys; sys.exit(2)"]}, "setup", "exit code 2"),
        ("ask('one')", {"setup": ["./not_there"]}, "setup", "not_there"),
        ("ask('one')", {"reward": "programs_under_test.wrong"}, "scoring", "nan"),
        ("ask('one')", {"reward": "programs_under_test.failing"}, "scoring", "KeyError: 'no such thing'"),
        ("ask('one')", {"reward": "command", "scoring": ["python", "-c", "print('good')"]}, "scoring", "'good'"),
        ("ask('one')", {"reward": "command", "scoring": ["python", "-c", "1/0"]}, "scoring", "ZeroDivisionError"),
        ("ask('one')", {"reward": "programs_under_test.hanging", "scoring_timeout_s": 0.2}, "scoring", "more than 0.2 s"),
    ],
)
def test_what_goes_wrong_costs_the_episode_and_says_why(play, code, program, kind, said):
    with pytest.raises(EpisodeFailed) as failure:
        play(code, **program)
    assert failure.value.kind == kind and said in str(failure.value)


HANGS = "ask('one')\nimport time\ntime.sleep(60)"


@pytest.mark.parametrize("last", ["import time\ntime.sleep(300)", "sys.exit(3)"])
def test_a_program_that_ends_its_episode_is_ended_and_scored_on_what_it_did(play, last, no_child_is_left):
    """As one whose threads would keep it alive."""
    end = "post(os.environ['ROLL_END_URL'], os.environ['OPENAI_API_KEY'], {})"
    (sample,) = play(f"ask('one')\n{end}\n{last}")
    assert (sample.reward, sample.trajectory.end) == (5.0, "terminated")
    with pytest.raises(EpisodeFailed, match="no_calls"):
        play(f"{end}\n{last}")


def test_a_program_that_takes_too_long_has_failed_or_is_scored_on_what_it_did(play):
    with pytest.raises(EpisodeFailed) as failure:
        play(HANGS, agent_timeout_s=1.5)
    assert failure.value.kind == "timeout" and "after 1 answers" in str(failure.value)
    (sample,) = play(HANGS, agent_timeout_s=1.5, score_timeouts=True)
    assert sample.trajectory.end == "truncated" and sample.reward == 5.0 and sample.trajectory.success is False


@pytest.mark.parametrize(
    ("code", "program", "kind"),
    [
        ("import time\ntime.sleep(300)", {}, "timeout"),
        ("import time\ntime.sleep(300)", {"score_timeouts": True}, "no_calls"),
        ("pass", {}, "no_calls"),
    ],
)
def test_an_agent_that_the_gateway_has_not_heard_is_told_apart(play, code, program, kind):
    with pytest.raises(Unanswered) as failure:
        play(code, agent_timeout_s=1.5, **program)
    assert (failure.value.kind, failure.value.cause) == (kind, "no request of it has reached the gateway at 127.0.0.1")


def test_an_agent_whose_call_was_refused_has_been_heard(play):
    code = """
    import time
    try:
        post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", "another", {})
    except OSError:
        time.sleep(300)
    """
    with pytest.raises(EpisodeFailed, match="timeout") as failure:
        play(code, agent_timeout_s=2.5)
    assert not isinstance(failure.value, Unanswered)


def test_an_agent_that_fails_of_what_the_policy_said_may_be_scored_on_what_it_did(play):
    """Many frameworks raise where the model calls a tool that is not there, or takes too many turns."""
    fails = f"{ASKS_TWICE}\nraise ValueError('no such tool')"
    with pytest.raises(EpisodeFailed):
        play(fails)
    one, two = play(fails, score_exits=True)
    assert (one.trajectory.end, one.reward, two.trajectory.success) == ("truncated", 7.0, False)
    with pytest.raises(EpisodeFailed, match="no_calls"):
        play("raise ValueError('before it asked')", score_exits=True)


def test_an_agent_that_fails_of_half_an_answer_is_scored_on_what_it_did(play):
    """OpenAI's client raises at the end of such a stream. It is the policy that comes to no end."""

    async def before(playing, world):
        world.ends = False

    (sample,) = play("ask('one')\nraise RuntimeError('incomplete')", before=before)
    assert (sample.trajectory.end, sample.reward, sample.finish_reason) == ("truncated", 5.0, "length")


def test_who_is_refused_at_a_limit_is_scored_on_what_it_did(play):
    """The client's error ends the program; the limit is ours."""
    first, second = play("ask('one')\nask('two')\nask('three')", env={"max_steps": 2})
    assert (first.trajectory.end, first.reward, second.reward) == ("max_steps", 7.0, 7.0)


ESCAPES = """
import subprocess, time
open(os.environ["OPENED"], "w").write(os.getcwd())
code = "import time; time.sleep(300)"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
subprocess.Popen([sys.executable, "-c", code], start_new_session=True, env={})
os.fork() or (os.setsid(), os.fork() and os._exit(0), os.execv(sys.executable, [sys.executable, "-c", code]))
os.fork() or (os.setsid(), os.fork() and os._exit(0), os.closerange(0, 99), time.sleep(300))
"""
"""What has left the group, what has nothing of the environment, what no longer has a parent, and what is no other program."""


@pytest.mark.parametrize("preload", [[], ["json"]], ids=["anew", "preloaded"])
@pytest.mark.parametrize("last", ["", "os._exit(0)", "os.kill(os.getppid(), 9)\ntime.sleep(300)"])
def test_a_program_is_ended_with_all_that_it_has_started(play, tmp_path, last, preload, no_child_is_left):
    """Also one that kills the process that keeps it."""
    play(f"{ESCAPES}\nask('one')\n{last}", preload=preload, score_exits=True, environment={"OPENED": str(tmp_path / "folder")})
    folder = (tmp_path / "folder").read_text()
    left = [each for each in psutil.process_iter(["cwd"]) if (each.info["cwd"] or "").startswith(folder)]
    if "getppid" in last:  # the episode ends with its keeper, and what starts keepers ends the rest as soon as it hears of it
        _, left = psutil.wait_procs(left, timeout=20)
    assert folder and not left


STARTS_ANOTHER = """
import signal, time
place = os.environ["PLACE"]

def another(*_):
    if os.fork() == 0:
        time.sleep(300)
    open(f"{place}/started", "w").close()

ready, say = os.pipe()
if (stray := os.fork()) == 0:
    os.setsid()
    held = open(f"{place}/held", "w")
    signal.signal(signal.SIGUSR1, another)
    os.write(say, b".")
    while True:
        signal.pause()
os.read(ready, 1)
with open(f"{place}/stray", "w") as file:
    file.write(str(stray))
ask("one")
os.kill(os.getppid(), 9)
time.sleep(300)
"""
"""It leaves a process that starts another when it gets SIGUSR1; both hold a pipe open."""
AT_THAT_MOMENT = """
import os, signal
kill, told = os.kill, []

def late(pid, number):
    if not told and str(pid) == open("{place}/stray").read():
        told.append(pid)
        kill(pid, signal.SIGUSR1)
        open("{place}/started").close()
    kill(pid, number)

os.kill = late
"""


def test_what_is_started_while_what_a_program_has_left_is_ended_is_ended_too(play, tmp_path, monkeypatch):
    """Of a program that has killed the process that keeps it. It is started when what starts programs has found the others."""
    for name in ("held", "started"):
        os.mkfifo(tmp_path / name)
    monkeypatch.setattr(process, "_START", AT_THAT_MOMENT.format(place=tmp_path) + process._START)
    held = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    try:
        play(STARTS_ANOTHER, score_exits=True, environment={"PLACE": str(tmp_path)})
        assert select.select([held], [], [], 20)[0], "a process that was started still holds the pipe open"
        assert os.read(held, 1) == b""
    finally:
        os.close(held)


def test_a_program_that_stops_what_keeps_it_is_ended_too(play, no_child_is_left):
    with pytest.raises(EpisodeFailed, match="timeout"):
        play("ask('one')\nos.kill(os.getppid(), 19)\nimport time\ntime.sleep(300)", agent_timeout_s=2.0)


def test_what_starts_programs_is_replaced_if_one_of_them_kills_it(play):
    code = "above = open(f'/proc/{os.getppid()}/stat').read().rpartition(') ')[2].split()[1]\n"
    (sample,) = play(f"ask('one')\n{code}os.kill(int(above), 9)", reward="command", scoring=["python", "-c", "print(0.5)"])
    assert sample.reward == 0.5


def test_what_dies_before_it_has_read_the_scoring_costs_nothing(play, monkeypatch):
    """As where the agent has killed it and the kernel has not come to that yet: the next one starts the scoring."""
    begun, killed = Starter._begun, []

    async def killed_after_it(starter, command, gateway):
        if command.is_agent or killed:
            return await begun(starter, command, gateway)
        killed.append(starter._process.pid)
        os.kill(killed[0], signal.SIGSTOP)
        try:
            return await begun(starter, command, gateway)
        finally:
            os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr(Starter, "_begun", killed_after_it)
    (sample,) = play("ask('one')", reward="command", scoring=["python", "-c", "print(0.5)"])
    assert sample.reward == 0.5 and killed


def test_the_errors_of_the_policy_end_the_program_and_are_the_runs(play):
    def fails(number, context):
        raise RuntimeError("no engine")

    with pytest.raises(RuntimeError, match="no engine"):
        play("try:\n    ask('one')\nexcept Exception:\n    import time\n    time.sleep(60)", says=fails)


def test_a_cancelled_episode_leaves_neither_process_nor_folder(play):
    async def before(playing, world):
        await world.asking.wait()
        before.agents = [each for each, line in command_lines().items() if "agent.py" in line]
        before.folders = [Path(each.cwd()) for each in before.agents]
        playing.cancel()

    with pytest.raises(asyncio.CancelledError):
        play(HANGS, before=before)
    assert before.agents and not any(map(lives, before.agents))
    assert not any(folder.exists() for folder in before.folders)

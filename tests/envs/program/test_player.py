"""Episodes of real programs: what they are told, what they may cost, and what becomes of what they did."""

import asyncio
import contextlib
import os
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from gateway_world import World

from roll.configs.agentic import EnvConfig
from roll.configs.program import ProgramConfig
from roll.envs.program.player import Programs
from roll.envs.program.process import EPISODE, processes_of
from roll.errors import EpisodeFailed
from roll.rollout.episode import EpisodeTask

sys.path.append(str(Path(__file__).parent))  # rewards are named by dotted path
TASK = EpisodeTask(uid="train/shop/3", tag="shop", index=1, env_seed=11)
HEAD = """
import json, os, sys, urllib.request

def post(url, key, body):
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)

def ask(*texts):
    messages = [{"role": "user", "content": text} for text in texts]
    body = {"model": "m", "messages": messages}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    return post(url, os.environ["OPENAI_API_KEY"], body)["choices"][0]["message"]["content"]

def reward(value):
    post(os.environ["ROLL_REWARD_URL"], os.environ["ROLL_REWARD_KEY"], {"value": value})
"""
ASKS_TWICE = "said = ask('one')\nopen('said.txt', 'w').write(said)\nask('two')"


@pytest.fixture
def play(tmp_path):
    """Plays one episode of the agent whose code is given; returns its samples."""

    def played(code, says=("first", "second!"), *, before=None, env=None, **program):
        folder = tmp_path / "given"
        folder.mkdir(exist_ok=True)
        (folder / "agent.py").write_text(HEAD + textwrap.dedent(code))
        config = ProgramConfig(
            **{"command": ["python", "agent.py"], "folder": str(folder), "reward": "programs_under_test.length"} | program
        )
        world = World(says)

        async def main():
            env_config = EnvConfig(env_type="program", program=config, **(env or {}))
            programs = Programs({"shop": env_config}, world.dialogue, "127.0.0.1", 5000, lambda tag: 50)
            try:
                playing = asyncio.ensure_future(programs.play(TASK, world.ask))
                if before is not None:
                    await before(playing, world)
                return await playing
            finally:
                await programs.close()

        played.world = world
        return asyncio.run(main())

    return played


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
        ("ask('one')", {"reward": "posted"}, "no_reward", "without posting"),
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


def test_a_program_that_takes_too_long_has_failed_or_is_scored_on_what_it_did(play):
    with pytest.raises(EpisodeFailed) as failure:
        play(HANGS, agent_timeout_s=1.5)
    assert failure.value.kind == "timeout" and "after 1 answers" in str(failure.value)
    (sample,) = play(HANGS, agent_timeout_s=1.5, score_timeouts=True)
    assert sample.trajectory.end == "truncated" and sample.reward == 5.0 and sample.trajectory.success is False


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
import subprocess
code = "import time; time.sleep(300)"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
os.fork() or (os.setsid(), os.fork() and os._exit(0), os.execv(sys.executable, [sys.executable, "-c", code]))
open(os.environ["OPENED"], "w").write(os.environ["ROLL_EPISODE"])
ask("one")
"""


def test_a_program_is_ended_with_all_that_it_has_started(play, tmp_path):
    """Also what has left its group, and what no longer has a parent."""
    play(ESCAPES, environment={"OPENED": str(tmp_path / "episode")})
    episode = (tmp_path / "episode").read_text()
    assert episode and processes_of(episode) == []


STARTS_A_SERVER = """
import subprocess
given = {name: os.environ[name] for name in ("HOME", "PATH")}
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], env=given, start_new_session=True)
open(os.environ["OPENED"], "w").write(str(left.pid))
ask("one")
"""


def test_a_server_that_was_started_with_little_of_the_environment_ends_too(play, tmp_path):
    """As the client of MCP starts servers: in a group of their own, without the variables of the episode."""
    play(STARTS_A_SERVER, environment={"OPENED": str(tmp_path / "pid")})
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_the_errors_of_the_policy_end_the_program_and_are_the_runs(play):
    def fails(number, context):
        raise RuntimeError("no engine")

    with pytest.raises(RuntimeError, match="no engine"):
        play("try:\n    ask('one')\nexcept Exception:\n    import time\n    time.sleep(60)", says=fails)


def test_a_cancelled_episode_leaves_neither_process_nor_folder(play):
    async def before(playing, world):
        await world.asking.wait()
        before.episodes = [
            child.environ().get(EPISODE) for child in psutil.Process().children(recursive=True) if _has_environment(child)
        ]
        playing.cancel()

    with pytest.raises(asyncio.CancelledError):
        play(HANGS, before=before)
    episodes = [episode for episode in before.episodes if episode]
    assert episodes and processes_of(episodes[0]) == []


def _has_environment(process):
    with contextlib.suppress(psutil.Error):
        return bool(process.environ())
    return False

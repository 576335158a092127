"""Episodes of 20 turns whose process is killed (SIGKILL) at any moment, and goes on at the last turn on record."""

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import random
import signal
import time
from array import array
from pathlib import Path

import pytest

from roll.cli.verify import read_run, violations
from roll.core.data.episode import PolicyAnswer
from roll.core.data.sample import LOGPROBS, TOKENS, SampleGroup, VersionSpan
from roll.core.data.seeding import derive_seed
from roll.core.explorer.group_play import GroupTask
from roll.core.workers.infer_interface import SamplingParams
from roll.envs import folder_calls
from roll.envs.durable_turns import GroupTurns, ProgramTurns
from roll.envs.environment_worker import EnvironmentWorker
from roll.envs.turn_files import TurnFiles, oldest, rows_of
from roll.platform.local_backend import LocalBackend

TURNS = 20
KILLS = int(os.environ.get("ROLL_KILLS", "100"))
UID = "train/letters/0"
MANAGERS = "roll.pipeline.agentic.env_manager"


class Coordinator(EnvironmentWorker):
    """Its policy answers by itself: tokens that follow from seed, turn and context. What is asked is a line of `asked`."""

    def __init__(self, asked, **kwargs):
        super().__init__(**kwargs)
        self.asked = asked

    async def _ask(self, task, episode, context, turn, most, stop):
        with self.asked.open("a") as file:
            file.write(f"{episode} {turn}\n")
        await asyncio.sleep(0.001)
        drawn = random.Random(derive_seed(task.uid, episode, turn, tuple(context)))
        ids = array(TOKENS, [4 + drawn.randrange(8) for _ in range(1 + drawn.randrange(most))])
        logprobs = array(LOGPROBS, [-drawn.random() for _ in ids])
        return PolicyAnswer(ids, logprobs, [VersionSpan(0, len(ids), task.version)], self._tokenizer.decode(ids), True)


@pytest.fixture
def coordinator(make_config, model_folder, tmp_path):
    def make(changes=None, env_type="Slow", turns: Path | None = tmp_path):
        long = {
            "custom_envs.letters.env_config": {"length": TURNS},
            "custom_envs.letters.max_steps": TURNS,
            "sequence_length": 200,
        }
        config = make_config({**long, **(changes or {})}, env_type=env_type)
        given = {"config": config, "tokenizer_folder": str(model_folder), "instructions": {"letters": ""}, "context": 200}
        return Coordinator(tmp_path / "asked", **given, requests_per_engine=8, turns=turns)

    return make


def task(size=2, version=0, seed=0, **more):
    given = {"key": "g0.0", "uid": UID, "tag": "letters", "env_seed": seed, "started": size, "needed": size}
    return GroupTask(**given, sampling=SamplingParams(), version=version, **more)


def played(coordinator, of):
    async def play():
        await coordinator.connect([], True)
        try:
            result = await coordinator.play_group(of)
            assert not result.outcome.failures
            return [stable(sample) for sample in result.samples]
        finally:
            await coordinator.close()

    return asyncio.run(play())


def stable(sample):
    """All of a sample but how long it took, and that it was replayed."""
    group = SampleGroup(0, 0, sample.prompt, [sample])
    (row,) = json.loads(json.dumps(group.to_json()))["samples"]
    for name in ("generation_s", "environment_s", "waiting_s"):
        row["trajectory"].pop(name)
    for name in ("turns_replayed", "basket"):
        row["trajectory"]["metrics"].pop(name, None)
    for turn in row["trajectory"]["turns"]:
        turn.pop("times")
    return row


def play_and_kill(make, of, kills, seed, result, longest_s=0.12):
    """Plays in forks, each killed at a random moment, until one comes to the end; after so many kills one is left alone. Returns
    the kills."""
    moments, died = random.Random(seed), 0
    while True:
        child = os.fork()
        if child == 0:
            try:
                result.write_text(json.dumps(played(make(), of)))
                os._exit(0)
            finally:
                os._exit(1)
        if died < kills:
            time.sleep(moments.uniform(0.0, longest_s))
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            return died
        assert status == -signal.SIGKILL, "it fails by itself"
        died += 1


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize("manager", ["traj_env_manager.TrajEnvManager", "step_env_manager.StepEnvManager"])
def test_a_kill_costs_each_episode_at_most_a_turn(coordinator, tmp_path, manager):
    """However many hit the same group; and the episodes are those that would have been."""
    changes = {"custom_envs.letters.env_manager_cls": f"{MANAGERS}.{manager}"}
    whole = played(coordinator(changes, turns=None), task())
    size, killed, groups = 2, 0, 0
    assert len(lines(tmp_path / "asked")) == size * TURNS
    while killed < KILLS / 2:
        (tmp_path / "asked").unlink()
        died = play_and_kill(lambda: coordinator(changes), task(), 10, seed=groups, result=tmp_path / "result")
        assert json.loads((tmp_path / "result").read_text()) == whole
        assert size * TURNS <= len(lines(tmp_path / "asked")) <= size * (TURNS + died)
        TurnFiles(tmp_path).remove(UID)
        killed, groups = killed + died, groups + 1
    print(f"{killed} kills in {groups} groups")


@pytest.mark.slow
def test_no_effect_happens_twice(coordinator, tmp_path):
    orders = tmp_path / "orders"
    changes = {"custom_envs.letters.env_config": {"orders": str(orders)}}
    killed = groups = 0
    while killed < KILLS / 2:
        for path in (orders, tmp_path / "asked"):
            path.unlink(missing_ok=True)
        died = play_and_kill(lambda: coordinator(changes, "Shop"), task(), 10, seed=groups, result=tmp_path / "result")
        told = lines(orders)
        assert len(told) == len(set(told))
        placed = [line.split(" ", 2) for line in told]
        baskets = {basket for basket, _, _ in placed}
        assert sorted((basket, int(turn)) for basket, turn, _ in placed) == sorted(
            (basket, turn) for basket in baskets for turn in range(TURNS)
        ), "each episode has its 20 effects, once each"
        assert len(baskets) == 2 and len(lines(tmp_path / "asked")) <= 2 * (TURNS + died)
        said = [turn["action"] for row in json.loads((tmp_path / "result").read_text()) for turn in row["trajectory"]["turns"]]
        assert sorted(map(repr, said)) == sorted(text for _, _, text in placed)
        TurnFiles(tmp_path).remove(UID)
        killed, groups = killed + died, groups + 1
    print(f"{killed} kills in {groups} groups")


def test_an_environment_that_does_otherwise_is_told_of_and_its_episode_restarts(coordinator, tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("NO_FORK", str(os.getpid()))
    play_and_kill(lambda: coordinator(env_type="Fickle"), task(1), 3, 0, tmp_path / "result")
    asked = len(lines(tmp_path / "asked"))
    other = coordinator(env_type="Fickle")
    with caplog.at_level(logging.WARNING):
        (episode,) = played(other, task(1))
    assert "episode 0.0 restarts, its record does not fit: turn 3 shows, earns or ends otherwise" in caplog.text
    assert len(lines(tmp_path / "asked")) == asked + TURNS
    assert episode["trajectory"]["num_turns"] == TURNS


def test_turns_older_than_the_group_are_not_its_own(coordinator, tmp_path):
    played(coordinator(), task(1, version=3))
    played(coordinator(), task(1, version=3))
    assert len(lines(tmp_path / "asked")) == TURNS
    played(coordinator(), task(1, version=4))
    played(coordinator(), task(1, version=4))
    assert len(lines(tmp_path / "asked")) == 2 * TURNS
    TurnFiles(tmp_path).forget_after(3)
    played(coordinator(), task(1, version=3))
    assert len(lines(tmp_path / "asked")) == 3 * TURNS, "their weights are gone"


@pytest.mark.parametrize("changes", [{"custom_envs.letters.durable_turns": False}, {"custom_envs.letters.max_steps": 1}])
def test_nothing_is_recorded_where_nothing_could_go_on(coordinator, tmp_path, changes):
    played(coordinator(changes), task(1))
    assert not (tmp_path / "turns").exists()


@pytest.fixture
def network(monkeypatch):
    """The run's folder lies on a network file system, as far as anybody can tell. A pipe that nobody opens at the other end hangs
    whoever reads or writes it, as a file does whose server is away."""
    monkeypatch.setattr(folder_calls, "of_network", lambda folder: "nfs4")
    monkeypatch.setattr(folder_calls, "MOMENT_S", 0.05)


@pytest.mark.usefixtures("network")
def test_a_record_on_a_network_folder_is_gone_on_from(coordinator, tmp_path):
    whole = played(coordinator(turns=None), task(1))
    (tmp_path / "asked").unlink()
    assert played(coordinator(), task(1)) == whole
    assert played(coordinator(), task(1)) == whole
    assert len(lines(tmp_path / "asked")) == TURNS, "all turns of the second are from the record"


@pytest.mark.usefixtures("network")
def test_a_folder_that_hangs_costs_the_record_and_no_episode(coordinator, tmp_path, caplog):
    whole = played(coordinator(turns=None), task(1))
    (tmp_path / "asked").unlink()
    files = TurnFiles(tmp_path)
    files.path(UID).parent.mkdir()
    os.mkfifo(files.path(UID))
    playing = coordinator()
    assert played(playing, task(1)) == whole
    assert caplog.text.count("does not answer: turns are not recorded until it does") == 1
    other = dataclasses.replace(task(1), uid="train/letters/1")
    played(playing, other)
    assert not files.path(other.uid).exists(), "while a call is late there is no other"
    os.close(os.open(files.path(UID), os.O_WRONLY))  # the folder is back: the reader sees an end
    playing._turns.calls._late.result(10)
    played(playing, other)
    assert files.size(other.uid) and len(lines(tmp_path / "asked")) == 3 * TURNS


@pytest.fixture
def slow_turns(network, tmp_path):
    """A record whose file is a pipe from now on: it is full after 64 KiB, and a write waits until somebody reads."""
    turns = GroupTurns(TurnFiles(tmp_path), "group", 1 << 20, SamplingParams(), 0)
    asyncio.run(turns.append("0.0", began=1))
    read, write = os.pipe()
    os.dup2(write, turns._file._file.fileno())
    os.close(write)
    yield turns, read
    turns.close()
    os.close(read)


LONG = {"step": "x" * (1 << 17)}


def drain(pipe, rows):
    """Reads so many rows."""
    text = b""
    while text.count(b"\n") < rows:
        text += os.read(pipe, 1 << 20)
    return [json.loads(line)["episode"] for line in text.splitlines()]


def test_a_write_that_hangs_ends_the_record_of_its_group(slow_turns, tmp_path, caplog):
    turns, pipe = slow_turns
    asyncio.run(turns.append("0.0", **LONG))
    assert turns.turns("0.0") == 0 and "does not answer" in caplog.text
    assert TurnFiles(tmp_path).size("group") > 0, "the rows before are there for others"
    assert drain(pipe, 1) == ["0.0"]
    assert [row["began"] for row in rows_of(TurnFiles(tmp_path).path("group"))] == [1]


def test_a_slow_write_keeps_its_own_episode_waiting_alone_and_rows_in_order(slow_turns, monkeypatch):
    turns, pipe = slow_turns
    monkeypatch.setattr(folder_calls, "MOMENT_S", 60.0)

    async def play():
        names = [f"{episode}.0" for episode in range(3)]
        waiting = [asyncio.create_task(turns.append(name, **LONG)) for name in names]
        done, _ = await asyncio.wait(waiting, timeout=0)
        assert not done and not any(map(turns.turns, names)), "no turn counts before it is on record"
        assert await asyncio.to_thread(drain, pipe, 3) == names
        await asyncio.gather(*waiting)
        assert list(map(turns.turns, names)) == [1, 1, 1]

    asyncio.run(play())


def test_a_validation_is_not_recorded(coordinator, tmp_path):
    played(coordinator(), task(1, validation=True))
    assert not (tmp_path / "turns").exists()


def test_a_record_that_is_full_or_cannot_be_written_costs_the_record_alone(coordinator, tmp_path, caplog, monkeypatch):
    whole = played(coordinator(turns=None), task(1))
    monkeypatch.setattr("roll.envs.environment_worker.most_bytes", lambda *_: 2000)
    assert played(coordinator(), task(1)) == whole
    assert "has more than 2,000 bytes" in caplog.text and TurnFiles(tmp_path).size(UID) < 4000
    assert played(coordinator(), task(1)) == whole, "it goes on behind the part that is there"
    assert TURNS * 2 < len(lines(tmp_path / "asked")) < TURNS * 3
    caplog.clear()
    (tmp_path / "file").write_text("")
    assert played(coordinator(turns=tmp_path / "file"), task(1)) == whole
    assert "turns are recorded no further" in caplog.text


def test_an_environment_whose_process_is_killed_goes_on(coordinator, tmp_path):
    """Here the coordinator lives; each of the episode's processes dies after some turns."""
    whole = played(coordinator(turns=None), task(1))
    (tmp_path / "asked").unlink()
    playing = coordinator({"custom_envs.letters.execution": "process"})

    async def kill():
        for turn in (4, 9, 15):
            while len(lines(tmp_path / "asked")) < turn:
                await asyncio.sleep(0.001)
            (host,) = playing._hosts.values()
            for pid in host.pids:
                os.kill(pid, signal.SIGKILL)

    async def main():
        await playing.connect([], True)
        killing = asyncio.create_task(kill())
        try:
            result = await playing.play_group(task(1))
            await killing
        finally:
            await playing.close()
        assert not result.outcome.failures
        return [stable(sample) for sample in result.samples]

    assert asyncio.run(main()) == whole
    assert TURNS <= len(lines(tmp_path / "asked")) <= TURNS + 3


async def answers_of(turns, asked, log):
    async def sample(context, call, most, stop):
        log.append(call)
        return PolicyAnswer(array(TOKENS, [4 + call]), array(LOGPROBS, [-0.5]), [VersionSpan(0, 1, 0)], "ab"[call % 2], True)

    program = ProgramTurns(turns, "0.0", sample)
    return [(await program.ask(context, call, 4)).token_ids.tolist() for call, context in enumerate(asked)]


def group_turns(tmp_path):
    turns = GroupTurns(TurnFiles(tmp_path), "group", 1 << 20, SamplingParams(), 0)
    asyncio.run(turns.begin())
    return turns


def test_calls_of_a_program_are_answered_from_the_record_until_it_asks_something_else(tmp_path, caplog):
    def ask(*asked):
        turns, log = group_turns(tmp_path), []
        told = asyncio.run(answers_of(turns, asked, log))
        turns.close()
        return told, log

    first = ask([1], [2], [2], [3])[0]
    assert ask([1], [2], [2], [3], [5]) == ([*first, [8]], [4]), "equal requests have their answers in order"
    assert not caplog.text
    told, log = ask([1], [2], [7], [3])
    assert told[:2] == first[:2] and log == [2, 3], "what follows a difference is another course"
    assert "call 3 asks something else than before the interruption, so 3 recorded answers are not used" in caplog.text
    assert ask([1], [2], [7], [3], [9]) == ([*told, [8]], [4]), "the new course is on record"


def test_a_program_that_asks_side_by_side_may_be_answered_in_another_order(tmp_path, caplog):
    """Of three calls at once the second had no answer yet."""
    turns, asked, log = group_turns(tmp_path), ([1], [2], [3]), []

    async def part():
        async def sample(context, call, most, stop):
            if call == 1:
                await asyncio.Event().wait()
            return PolicyAnswer([4 + call], [-0.5], [VersionSpan(0, 1, 0)], "a", True)

        program = ProgramTurns(turns, "0.0", sample)
        calls = [asyncio.ensure_future(program.ask(context, call, 4)) for call, context in enumerate(asked)]
        await asyncio.wait([calls[0], calls[2]])
        calls[1].cancel()

    asyncio.run(part())
    turns.close()
    told = asyncio.run(answers_of(group_turns(tmp_path), [[2], [3], [1]], log))
    assert told == [[4], [6], [4]] and log == [0] and not caplog.text


@pytest.mark.slow
def test_a_program_whose_coordinator_is_killed_goes_on(of_programs, tmp_path):
    agent = "begin, told = [{'role': 'user', 'content': 'a'}], []\nfor _ in range(20):\n    told += [ask(begin + told)]\n"
    agent += "    told += [{'role': 'user', 'content': 'more'}]\n"
    (tmp_path / "agent" / "agent.py").write_text(AGENT_ASKS.format(agent))
    config = of_programs({"custom_envs.letters.max_steps": TURNS, "sequence_length": 256})

    def make(turns=tmp_path):
        given = {"config": config, "tokenizer_folder": config.pretrain, "instructions": {}, "context": 2000}
        return Coordinator(tmp_path / "asked", **given, requests_per_engine=8, turns=turns)

    whole = played(make(None), task(1))
    (tmp_path / "asked").unlink()
    died = play_and_kill(make, task(1), 5, 1, tmp_path / "result", longest_s=0.6)
    (episode,), (as_it_was,) = json.loads((tmp_path / "result").read_text()), whole
    assert {**episode, "trajectory": None} == {**as_it_was, "trajectory": None}  # exchanges have new ids
    assert [turn["action"] for turn in episode["trajectory"]["turns"]] == [t["action"] for t in as_it_was["trajectory"]["turns"]]
    assert as_it_was["trajectory"]["num_turns"] == TURNS and died
    assert TURNS <= len(lines(tmp_path / "asked")) <= TURNS + died


def first_versions(run_dir):
    """Versions under which episodes in play had their first turns."""
    files = TurnFiles(run_dir)
    with contextlib.suppress(OSError):  # one is removed meanwhile
        return {oldest(row) for path in files.path("").parent.glob("*.jsonl") for row in rows_of(path) if "answer" in row}
    return set()


@pytest.mark.slow
def test_an_asynchronous_run_whose_driver_is_killed_goes_on_with_episodes_of_older_versions(lab, make_config):
    """They start under the version of their first turn, so that their staleness is bounded by the same arithmetic."""
    changes = {
        "async_generation_ratio": 2,
        "max_steps": 6,
        "save_steps": 1,
        "max_ckpt_to_keep": 20,
        "sequence_length": 200,
        "custom_envs.letters.max_steps": TURNS,
        "rollout_log_per_step": "all",
    }
    config = make_config(changes, env_type="Uneven")
    run_dir = Path(config.run_dir)
    child = os.fork()
    if child == 0:
        lab.start(config, LocalBackend())
        os._exit(1)
    for _ in range(2000):
        time.sleep(0.01)
        saved = max((int(path.name[5:]) for path in run_dir.glob("checkpoints/step-*")), default=0)
        if saved >= 2 and saved - 1 in first_versions(run_dir):
            break
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    run = lab.start(dataclasses.replace(config, resume_from_checkpoint=True), LocalBackend())
    assert run.summary["status"] == "finished", run.summary["reason"]
    assert list(violations(read_run(run.run_dir))) == []
    gone_on = [row for row in run.trained_samples() if row["trajectory"]["metrics"].get("turns_replayed")]
    older = [row for row in gone_on if row["versions"][0][2] < saved]
    assert older, "some have turns of a version before the checkpoint, and went on"
    assert all(row["step"] - 1 - row["versions"][0][2] <= 2 for row in gone_on)
    assert all(row["lag"] <= 2 for row in run.rows("groups") if row["status"] == "trained")


AGENT_ASKS = """
import json, os, urllib.request

def ask(messages):
    body = json.dumps({{"model": "m", "messages": messages}}).encode()
    headers = {{"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]

{}
"""

"""The checker finds each broken promise in a run that keeps all others."""

import hashlib
import itertools
import json
import sqlite3
from dataclasses import replace

import pytest
import yaml

from roll.cli import verify_files
from roll.cli.verify import main, read_run, violations
from roll.core.record.run_identity import identify, write_identity


def group(group_id, step, *, status="trained", start=None, lag=0):
    trained = status == "trained"
    return {
        "group_id": group_id,
        "prompt_uid": f"sums/{group_id // 4}/{group_id % 4}",
        "status": status,
        "reason": "" if trained else "filter_std",
        "step": step,
        "start_version": step - 1 if start is None else start,
        "lag": lag if trained else None,
    }


def sample(group_id, step, version, status="trained"):
    return {
        "step": step,
        "status": status,
        "group_id": group_id,
        "index": 0,
        "versions": [[0, 2, version, 0]],
        "response_ids": [5, 6],
        "behaviour_logprobs": [-0.5, -0.5],
    }


class Folder:
    """Three steps of two groups, one dropped, one prompt of the second epoch served twice as late; a checkpoint after step 2."""

    def __init__(self, path):
        self.path = path
        self.groups = [group(0, 1), group(1, 1), group(2, 2), group(4, 2, status="dropped"), group(3, 2)]
        self.groups += [group(5, 3, start=1, lag=1), group(6, 3)]
        self.samples = [sample(0, 1, 0), sample(5, 3, 1), sample(None, 2, 2, "validation")]
        self.metrics = [{"step": step, "time/step_s": 1.0} for step in (1, 2, 3)]
        self.counts = {"admitted": 7, "trained": 6, "buffered": 0, "in_flight": 0, "dropped": {"filter_std": 1}}
        self.accounts = {"next_group_id": 7, "trained": 4, "dropped": {"filter_std": 1}}
        self.buffer = [{"group_id": 5}]
        self.listed = None
        self.ratio = 0.5
        self.before = {"groups": 5, "samples": 1, "metrics": 2}
        self.max_reuse = None
        self.digests = {}

    def write(self):
        step = self.path / "checkpoints" / "step-2"
        step.mkdir(parents=True, exist_ok=True)
        config = {"async_generation_ratio": self.ratio} | ({"max_reuse": self.max_reuse} if self.max_reuse else {})
        (self.path / "config.yaml").write_text(yaml.safe_dump(config))
        lines = {name: [json.dumps(row) + "\n" for row in getattr(self, name)] for name in ("groups", "samples", "metrics")}
        for name, rows in lines.items():
            (self.path / f"{name}.jsonl").write_text("".join(rows))
        (self.path / "summary.json").write_text(json.dumps({"status": "finished", "groups": self.counts}))
        written = {name: "".join(lines[name][:count]).encode() for name, count in self.before.items()}
        digests = {name: hashlib.blake2b(rows, digest_size=32).hexdigest() for name, rows in written.items()}
        record = {name: len(rows) for name, rows in written.items()} | {"digests": digests | self.digests}
        (step / "pipeline.json").write_text(json.dumps({"admission": self.accounts, "record": record}))
        (step / "buffer.jsonl").write_text("".join(json.dumps(row) + "\n" for row in self.buffer))
        files = self.listed or {f: hashlib.sha256((step / f).read_bytes()).hexdigest() for f in ("pipeline.json", "buffer.jsonl")}
        (step / "manifest.json").write_text(json.dumps({"step": 2, "files": files}))
        return list(violations(read_run(self.path)))


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def test_a_run_that_keeps_all_promises_has_no_violation(folder, capsys):
    assert folder.write() == []
    assert main([str(folder.path)]) == 0
    assert "7 groups, 6 trained, 1 checkpoint; no promises broken" in capsys.readouterr().out
    assert main([str(folder.path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] and (told["groups"], told["trained"], told["checkpoints"], told["broken"]) == (7, 6, 1, [])


def test_what_a_kill_has_left_of_checkpoints_is_told(folder, capsys):
    folder.write()
    for name in ("step-1", ".step-1.deleted", ".step-3.7.partial", "mine"):
        (folder.path / "checkpoints" / name / "trainer").mkdir(parents=True)
    assert main([str(folder.path)]) == 0
    left = "is what a kill has left of a checkpoint: the next start of the run removes it, or you may"
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: checkpoints/")] == [
        f"note: checkpoints/.step-1.deleted {left}",
        f"note: checkpoints/.step-3.7.partial {left}",
        "note: checkpoints/step-1 has no manifest.json: nothing resumes from it, and you may remove it",
    ]
    (folder.path / "summary.json").write_text(json.dumps({"status": "running", "groups": folder.counts, "as_of": "now"}))
    assert not any("kill" in line for line in read_run(folder.path).notes), "it is being written"


def test_a_run_that_was_killed_is_judged_by_what_it_wrote(folder):
    folder.write()
    (folder.path / "summary.json").unlink()
    with (folder.path / "groups.jsonl").open("a") as file:
        file.write('{"group_id": 7, "fat')
    assert list(violations(read_run(folder.path))) == []


def test_a_killed_run_may_have_written_a_part_of_its_last_step(folder):
    folder.write()
    lines = (folder.path / "groups.jsonl").read_text().splitlines(keepends=True)
    summary = {"status": "failed", "as_of": "2026-01-01 00:00:00"}
    (folder.path / "summary.json").write_text(json.dumps(summary))
    (folder.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in folder.metrics[:-1]))

    def broken(*groups):
        (folder.path / "groups.jsonl").write_text("".join(groups))
        return list(violations(read_run(folder.path)))

    assert [json.loads(line)["step"] for line in lines[-2:]] == [3, 3]
    assert broken(*lines[:-1]) == []
    more = json.dumps(group(7, 3)) + "\n"
    for steps in (lines[1:], [*lines, more]):
        assert any("steps trained different numbers of groups" in line for line in broken(*steps))


def test_the_figures_of_a_run_that_runs_may_be_older_than_its_journals(folder, capsys):
    folder.write()
    older = folder.counts | {"admitted": 5, "trained": 3, "in_flight": 1}
    running = {"status": "running", "as_of": "2026-01-01 00:00:00", "groups": older}
    (folder.path / "summary.json").write_text(json.dumps(running))
    assert main([str(folder.path)]) == 0
    assert "(running)" in capsys.readouterr().out
    running["groups"] = older | {"admitted": 6}
    (folder.path / "summary.json").write_text(json.dumps(running))
    assert main([str(folder.path)]) == 1, "its accounts have to balance all the same"


def test_a_run_that_goes_on_while_it_is_read_breaks_no_promise(folder, monkeypatch):
    folder.write()
    (folder.path / "summary.json").write_text(json.dumps({"status": "running"}))
    steps = itertools.count(4)

    def read_slowly(path, *more):
        for step in itertools.islice(steps, 2):
            new = {"groups": [group(2 * step, step), group(2 * step + 1, step)], "metrics": [{"step": step, "time/step_s": 1.0}]}
            for name, written in new.items():
                with (folder.path / f"{name}.jsonl").open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in written)
        return rows_of(path, *more)

    rows_of = verify_files.rows
    monkeypatch.setattr(verify_files, "rows", read_slowly)
    assert list(violations(read_run(folder.path))) == []


def test_samples_may_lie_in_several_files_of_which_the_oldest_have_gone(folder):
    """The checkpoint stands in the middle of the second of three files."""
    folder.samples = [sample(0, 1, 0), sample(5, 3, 1), sample(None, 2, 2, "validation")]
    folder.write()
    text = (folder.path / "samples.jsonl").read_bytes()
    pipeline = folder.path / "checkpoints/step-2/pipeline.json"
    state = json.loads(pipeline.read_text())
    start = 1000
    state["record"]["samples"] += start
    pipeline.write_text(json.dumps(state))
    listed = pipeline.with_name("manifest.json")
    files = json.loads(listed.read_text())
    files["files"]["pipeline.json"] = hashlib.sha256(pipeline.read_bytes()).hexdigest()
    listed.write_text(json.dumps(files))
    first, second, third = (folder.path / f"samples{end}.jsonl" for end in ("", f"-{start:015}", f"-{start + len(text):015}"))
    second.write_bytes(text)
    third.write_text(json.dumps(sample(6, 3, 2)) + "\n")
    assert list(violations(read_run(folder.path))) == []
    third.write_text(json.dumps(sample(6, 3, 3)) + "\n")
    assert any("sample 0 of group 6 (step 3)" in line for line in violations(read_run(folder.path)))
    second.write_bytes(text.replace(b"5", b"4", 1))
    assert any("rows before step-2 were changed" in line for line in violations(read_run(folder.path)))
    first.unlink()
    second.unlink()
    third.write_text("")
    assert list(violations(read_run(folder.path))) == []


def change(name, position, **values):
    def breaks(folder):
        getattr(folder, name)[position] = getattr(folder, name)[position] | values

    return breaks


def reuse(group_id, step, **values):
    """Group 5, of version 1, may be trained again by step 3 as well as by step 2: the bound is 1."""
    return group(group_id, step, status="trained") | {"status": "reused", "start_version": 1, "lag": step - 2} | values


@pytest.fixture
def reusing(folder):
    """Step 2 trains group 5 in the place of group 3, which never was, and step 3 trains it again."""
    folder.max_reuse = 2
    folder.groups = [group(0, 1), group(1, 1), group(2, 2), group(4, 2, status="dropped"), group(5, 2, start=1)]
    folder.groups += [reuse(5, 3), group(6, 3), group(3, 3, status="dropped")]
    folder.samples[1] = sample(5, 3, 1)
    folder.counts = {
        "admitted": 7, "trained": 5, "reused": 1, "buffered": 0, "in_flight": 0, "dropped": {"filter_std": 2},
    }  # fmt: skip
    folder.buffer = [{"group_id": 5, "uses": 1}, {"group_id": 6}]
    return folder


def test_a_run_that_trains_groups_again_keeps_the_same_promises(reusing, capsys):
    assert reusing.write() == []
    assert main([str(reusing.path)]) == 0
    assert "7 groups, 5 trained and 1 times one again" in capsys.readouterr().out


def amended(folder, **summary):
    """The violations, with more in the summary than a whole run that was never resumed has."""
    folder.write()
    path = folder.path / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | summary))
    return list(violations(read_run(folder.path)))


def test_what_was_trained_before_a_run_had_tighter_bounds_breaks_none(reusing):
    """Step 3 trained a group for the second time, one version late. The run was resumed with ratio 0 and `max_reuse` 1."""
    reusing.ratio, reusing.max_reuse = 0, 1
    for row in reusing.metrics:
        row["scheduler/async_ratio"] = 0.5
    assert amended(reusing, resumed_from_step=3) == []
    assert amended(reusing, resumed_from_step=2) == ["group 5 was trained by 2 steps, max_reuse is 1"]
    reusing.metrics[2]["scheduler/async_ratio"] = 0.0
    assert amended(reusing, resumed_from_step=3) == [], "what had begun before is trained"
    reusing.metrics[1]["scheduler/async_ratio"] = 0.0
    assert amended(reusing, resumed_from_step=3) == ["group 5 was trained 1 versions late, the bound is 0"]


def test_a_run_that_goes_on_synchronously_trains_what_began_under_its_ratio(folder):
    """From its first step on it writes ratio 0; group 5 had begun before the engines failed so often."""
    for row in folder.metrics:
        row["scheduler/async_ratio"] = 0.0
    assert folder.write() == []


def test_a_run_that_began_with_another_runs_checkpoint_counts_from_there(folder):
    """Its accounts are those of both runs, its journals its own."""
    before = {"step": 1, "next_group_id": 2, "trained": 2, "dropped": {"stale": 3}, "reused": 0}
    folder.groups, folder.metrics = folder.groups[2:], folder.metrics[1:]
    folder.counts["admitted"], folder.counts["dropped"] = 10, {"filter_std": 1, "stale": 3}
    folder.accounts = {"next_group_id": 7, "trained": 4, "dropped": {"filter_std": 1, "stale": 3}}
    folder.before = {"groups": 3, "samples": 1, "metrics": 1}
    folder.samples[0] = sample(2, 2, 1)
    assert amended(folder, inherited=before) == []
    assert "steps without groups: [1]" in amended(folder)
    assert "step-2 counts 4 trained groups, groups.jsonl 3 up to step 2" in amended(folder, inherited=before | {"trained": 1})


BROKEN_REUSES = {
    "group 5 was trained by 2 steps, max_reuse is 1": lambda f: setattr(f, "max_reuse", 1),
    "group 3 was trained again by step 3, and never before": lambda f: change("groups", 5, group_id=3)(f),
    "group 5 was trained by steps [2, 2], not one after the other": lambda f: change("groups", 5, step=2, lag=0)(f),
    "group 5 was trained 2 versions late, the bound is 1": lambda f: change("groups", 5, lag=2)(f),
    "steps trained different numbers of groups": lambda f: f.groups.__delitem__(5),
    "summary.json counts 2 reused, groups.jsonl 1": lambda f: f.counts.update(reused=2),
    "has other numbers of uses than groups.jsonl: of groups [5]": lambda f: f.buffer[0].update(uses=2),
    "buffers groups that had ended: [5]": lambda f: f.buffer[0].pop("uses"),
    "step-2 counts 1 reused groups, groups.jsonl 0 up to step 2": lambda f: f.accounts.update(reused=1),
}


@pytest.mark.parametrize("says", BROKEN_REUSES)
def test_each_broken_promise_about_reuses_is_named(reusing, says):
    BROKEN_REUSES[says](reusing)
    assert any(says in line for line in reusing.write())


BROKEN = {
    "group 0 has 2 statuses": change("groups", 1, group_id=0),
    "status 'dropped' with the reason ''": change("groups", 0, status="dropped"),
    "steps trained different numbers of groups": change("groups", 4, step=3),
    "steps without groups: [2]": lambda f: [change("groups", i, step=1)(f) for i in (2, 4)],
    "has steps twice": change("metrics", 1, step=1),
    "metrics.jsonl ends with step 1": lambda f: f.metrics.__delitem__(slice(1, None)),
    "group 5 was trained 2 versions late, the bound is 1": change("groups", 5, lag=2, start_version=0),
    "group 6 started under version 2 and has a token of version 1": change("groups", 6, lag=1),
    "prompt sums/0/0 was served 2 times": change("groups", 1, prompt_uid="sums/0/0"),
    "1 prompts of epoch 0 of domain sums were lost, e.g. 3": change("groups", 4, prompt_uid="sums/1/3"),
    "has 1 log-probs for 2 tokens": change("samples", 0, behaviour_logprobs=[-0.5]),
    "has version spans [[0, 3, 0, 0]] for 2 tokens": change("samples", 0, versions=[[0, 3, 0, 0]]),
    "has tokens of versions [3], not of 1 to 2": change("samples", 1, versions=[[0, 2, 3, 0]]),
    "a validation of version 2 has tokens of [1]": change("samples", 2, versions=[[0, 2, 1, 0]]),
    "counts 5 trained groups, groups.jsonl 4 up to step 2": lambda f: f.accounts.update(trained=5),
    "buffers groups that had ended: [3]": lambda f: f.buffer.append({"group_id": 3}),
    "buffer.jsonl is not what was saved": lambda f: setattr(f, "listed", {"buffer.jsonl": "0" * 64}),
    "samples.jsonl: rows before step-2 were changed or lost": lambda f: f.digests.update(samples="0" * 64),
    "FileNotFoundError": lambda f: setattr(f, "listed", {"trainer/model.safetensors": "0" * 64}),
    "do not balance": lambda f: f.counts.update(admitted=8),
    "summary.json counts 5 trained": lambda f: f.counts.update(trained=5, admitted=6),
    "a finished run has groups without a terminal status": lambda f: f.counts.update(in_flight=1, admitted=8),
}


@pytest.mark.parametrize("says", BROKEN)
def test_each_broken_promise_is_named(folder, says, capsys):
    BROKEN[says](folder)
    assert any(says in line for line in folder.write())
    assert main([str(folder.path)]) == 1
    assert "broken: " in capsys.readouterr().out


def line_of(name, text):
    def damages(path):
        with (path / f"{name}.jsonl").open("ab") as file:
            file.write(text.encode() + b"\n")

    return damages


DAMAGED = {
    "groups.jsonl, line 8: not JSON": line_of("groups", '{"group_id": 7, "fat'),
    "groups.jsonl, line 8: not JSON (RecursionError": line_of("groups", "[" * 100_000),
    "groups.jsonl, line 8: a list, not an object": line_of("groups", "[]"),
    "groups.jsonl, line 8: it lacks prompt_uid": line_of("groups", '{"group_id": 7}'),
    "groups.jsonl, line 8: group_id is [7], not of type int": line_of("groups", json.dumps(group(7, 3) | {"group_id": [7]})),
    "groups.jsonl, line 8: lag is null, not of type int": line_of("groups", json.dumps(group(7, 3) | {"lag": None})),
    "metrics.jsonl, line 4: it lacks step": line_of("metrics", "{}"),
    "metrics.jsonl has 2 validations of version 6": line_of(
        "metrics", '{"step": 6, "time/validation_s": 1}\n{"step": 6, "time/validation_s": 1}'
    ),
    "samples.jsonl, line 4: it lacks step": line_of("samples", "{}"),
    "samples.jsonl, line 4: versions is [3]": line_of("samples", json.dumps(sample(6, 3, 2) | {"versions": [3]})),
    "summary.json is a list": lambda path: (path / "summary.json").write_text("[]"),
    "summary.json is not JSON (RecursionError": lambda path: (path / "summary.json").write_text("[" * 100_000),
    "summary cannot be checked: a file has contents that no run writes": lambda path: (path / "summary.json").write_text(
        '{"status": "finished", "groups": []}'
    ),
    "step-2: AttributeError": lambda path: (path / "checkpoints/step-2/manifest.json").write_text('{"step": 2, "files": []}'),
    "step-2: RecursionError": lambda path: (path / "checkpoints/step-2/pipeline.json").write_text("[" * 100_000),
    "groups.db cannot be read": lambda path: (path / "groups.db").write_bytes(b"no database" * 100),
}


@pytest.mark.parametrize("says", DAMAGED)
def test_what_is_damaged_is_a_finding(folder, says, capsys):
    folder.write()
    DAMAGED[says](folder.path)
    assert main([str(folder.path)]) == 1
    assert any(f"broken: {says}" in line for line in capsys.readouterr().out.splitlines())


def database_of(path, run_id):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE runs (run_id TEXT)")
        connection.execute("INSERT INTO runs VALUES (?)", (run_id,))
        columns = "id, prompt_uid, state, reason, step, start_version, lag"
        connection.execute(f"CREATE TABLE groups ({columns})")
        connection.execute("CREATE TABLE reuses (group_id, step, lag)")
    return f"sqlite:///{path}"


def test_only_the_database_of_the_run_itself_is_held_against_it(folder, tmp_path, capsys, monkeypatch):
    folder.write()
    config = yaml.safe_load((folder.path / "config.yaml").read_text())
    (folder.path / "config.yaml").write_text(yaml.safe_dump(config | {"groups_database": "sqlite:///shared.db"}))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    database_of(elsewhere / "shared.db", "0ther")
    assert main([str(folder.path)]) == 0
    assert "note: its database was not looked into: groups_database sqlite:///shared.db is relative" in capsys.readouterr().out
    identity = replace(identify(folder.path, "run", known="5eed"), database=database_of(tmp_path / "shared.db", "0ther"))
    write_identity(folder.path, identity)
    assert main([str(folder.path)]) == 0
    assert f"{tmp_path}/shared.db holds another run (0ther)" in capsys.readouterr().out
    write_identity(folder.path, replace(identity, database=database_of(tmp_path / "own.db", "5eed")))
    assert main([str(folder.path)]) == 1
    assert "group 0: groups.jsonl says" in capsys.readouterr().out, "it has lost them"
    (tmp_path / "own.db").unlink()
    assert main([str(folder.path)]) == 0
    assert f"there is no file {tmp_path}/own.db" in capsys.readouterr().out


def test_a_folder_that_is_no_run_is_one_line(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "cannot be read as a run" in capsys.readouterr().err

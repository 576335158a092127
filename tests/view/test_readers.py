"""Curves, groups, rollouts, lanes and the state of a run, read from the files that it leaves."""

import json
import os
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from database_party import B, with_explorers
from run_files import HOSTILE, ended, lines, make_run, metric, sample, trace

from roll.core.distributed.processes import Process
from roll.reports.verdict import Curve
from roll.view import groups, lanes, members, metrics, samples
from roll.view.content import Pieces
from roll.view.groups import GroupQuery, histogram, prompt_of
from roll.view.metrics import PANELS, Metrics, panels, thinned
from roll.view.run import RunReader
from roll.view.runs import differences, reached


def read(folder, rows):
    lines(folder / "metrics.jsonl", rows)
    found = Metrics(folder)
    found.look()
    return found


def test_a_curve_is_ordered_and_the_later_value_stands(tmp_path):
    rows = [{"step": 2, "a": 2.0}, {"step": 4, "a": 4.0}, {"step": 3, "a": 3.0}, {"step": 2, "a": 9}, {"step": 5, "a": None}]
    found = read(
        tmp_path, [*rows, {"step": 6, "h": {"1": 2}, "t": "text", "b": True, "a": float("nan")}, {"a": 1}, {"step": "x"}]
    )
    assert [list(column) for column in found.curve("a")] == [[2, 3, 4], [9.0, 3.0, 4.0]]
    assert list(found.curve("a", since=3).steps) == [4] and found.names() == ["a"] and found.damaged == 2


def test_engines_have_an_envelope(tmp_path):
    found = read(tmp_path, [{"step": 1, "m": 2.0, "m/0": 1.0, "m/1": 5.0, "m/max": 9.0}, {"step": 2, "m/1": 3.0}])
    assert found.curve("m" + metrics.LOWEST) == ([1, 2], [1.0, 3.0])
    assert found.curve("m" + metrics.HIGHEST) == ([1, 2], [5.0, 3.0])


def test_a_thinned_curve_keeps_its_peaks_and_ends():
    values = [0.0] * 10_000
    values[1234], values[7777] = 5.0, -5.0
    curve = thinned(Curve(range(10_000), values), most=100)
    assert len(curve.steps) <= 110 and {1234, 7777, 0, 9_999} <= set(curve.steps)
    assert thinned(Curve(range(50), values[:50]), most=100).steps == range(50)


def test_the_clock_goes_on_over_a_resumed_run(tmp_path):
    noted = [
        metric(1),
        metric(2, **{"time/elapsed_s": 10.0}),
        metric(3, **{"time/elapsed_s": 4.0}),
        metric(4, **{"time/elapsed_s": 6.0}),
    ]
    clock = read(tmp_path, noted).clock()
    assert [round(seconds, 6) for seconds, _ in clock.values()] == [3.0, 10.0, 14.0, 16.0]
    assert clock[4][1] == pytest.approx(160.0)


def test_a_run_has_the_panels_of_its_metrics_with_their_bands(tmp_path):
    names = [
        "actor/engine_mismatch",
        "actor/engine_mismatch/0",
        "actor/engine_mismatch/1",
        "eval/easy/all/avg@4",
        "val_correct/all/mean",
    ]
    found = {panel["title"]: panel["lines"] for panel in panels([*names, "eval/easy/all/avg@4/low", "eval/easy/all/avg@4/high"])}
    assert [line["label"] for line in found["Validation"]] == ["easy avg@4"] and found["Validation"][0]["low"].endswith("/low")
    assert found["Mismatch of engine and trainer"][0]["high"] == "actor/engine_mismatch/highest engine"
    assert panels(["val_correct/all/mean"])[0]["lines"][0]["name"] == "val_correct/all/mean" and not panels([])


def test_the_page_says_at_each_curve_what_the_tutorial_says():
    page = (Path(__file__).parents[2] / "docs_roll/tutorials/read_a_run.md").read_text()
    said = dict(re.findall(r"^\| `([a-z_/0-9]+)`[^|]*\| ([^|]+) \|", page, re.MULTILINE))
    said = {name: good.removesuffix(" and less") for name, good in said.items() if name != "idle_share"}
    found = {name: panels([name])[0]["good"].removesuffix(" and less") for name in said}
    assert found == said and len(said) == 5
    assert all(panel.good and panel.meaning.endswith(".") for panel in PANELS)


def test_a_run_says_how_it_is_doing_and_what_it_said_last(tmp_path):
    run = RunReader(make_run(tmp_path / "run", steps=4))
    assert run.status()["verdict"] == {
        "kind": "learning",
        "text": "validation 0.250 → 0.750 (+0.500) in 4 steps",
        "level": "good",
    }
    newest = run.newest()
    assert (newest["key"], newest["prompt"], newest["ground_truth"]) == ("4/9", "1+1=", "2")
    assert newest["sample"]["response"] == "2!" and newest["sample"]["reward"] == 1
    lines(run.folder / "metrics.jsonl", [{"step": 5, "val/errors": 73, "val/rollouts": 128}])
    status = run.status()
    assert status["verdict"]["kind"] == "not judged" and status["verdict"]["level"] == "error"
    assert status["validation"] == {"step": 5, "accuracy": None, "score": None, "errors": 73, "rollouts": 128}
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/config.yaml").write_text("mode: bench")
    assert RunReader(tmp_path / "bare").newest() is None and RunReader(tmp_path / "bare").status()["verdict"] is None


def test_groups_are_joined_filtered_sorted_and_paged(tmp_path):
    run = RunReader(make_run(tmp_path / "run", steps=4, groups=2))
    page = run.page(GroupQuery())
    assert page.total == 12 and page.histogram == [(0.5, 0.5, 4), (0.75, 0.75, 4)] and page.domains == ["math"]
    (first,) = run.page(GroupQuery(step_from=2, step_to=2, kept=True)).rows
    assert (first.key, first.reward, first.length, first.kept, first.cut) == ("2/3", 0.5, 2.0, True, 0.0)
    rows = run.page(GroupQuery(reward_from=0.75, sort="step", descending=True, offset=1, limit=2)).rows
    assert [(row.step, row.group_id) for row in rows] == [(3, 7), (2, 4)]
    dropped = run.page(GroupQuery(status="dropped", reason="equal", prompt="row2")).rows
    assert [row.group_id for row in dropped] == [2] and dropped[0].reward is None
    by_reward = run.page(GroupQuery(sort="reward", limit=500)).rows
    assert [row.reward for row in by_reward][-1] is None, "what has no reward comes last"
    assert run.funnel()["statuses"] == [["dropped", "equal", 4], ["trained", "", 8]]


def test_links_select_and_nonsense_is_refused():
    chosen = GroupQuery.parsed({"step_from": "3", "kept": "true", "reward_to": "0.5", "sort": "lag", "run": "x", "domain": ""})
    assert chosen == GroupQuery(step_from=3, kept=True, reward_to=0.5, sort="lag")
    for wrong in ({"step_from": "x"}, {"sort": "__class__"}, {"reward_to": "1;2"}):
        with pytest.raises(ValueError):
            GroupQuery.parsed(wrong)


def test_old_journals_take_reward_and_length_from_the_rollouts_and_validations_are_groups_too(tmp_path):
    folder = make_run(tmp_path / "run", steps=1)
    (folder / "groups.jsonl").write_text("")
    lines(folder / "groups.jsonl", [ended(0, 1), ended(1, 1), ended(6, 2, "dropped", "equal", uid="train/Lake/6")])
    lines(folder / "samples.jsonl", [sample(0, None, 0, uid="validation/3", status="validation", reward=None)])
    lines(folder / "samples.jsonl", [sample(1, 6, 0, uid="train/Lake/6", status="dropped: equal", reward=0.25)])
    rows = {row.key: row for row in RunReader(folder).page(GroupQuery()).rows}
    assert rows["1/0"].reward == 0.5 and rows["1/0"].rollouts == 2 and rows["1/1"].reward is None
    assert rows["0/validation/3"].status == "validation" and rows["0/validation/3"].reward is None
    assert rows["2/6"].kept and rows["2/6"].reward == 0.25, "the two journals count a drop differently by one"


def test_rewards_make_few_bins_that_hold_all():
    assert histogram([]) == [] and histogram([1.0, 0.0, 1.0]) == [(0.0, 0.0, 1), (1.0, 1.0, 2)]
    bins = histogram([i / 1000 for i in range(1000)], bins=10)
    assert len(bins) == 10 and sum(count for *_, count in bins) == 1000 and bins[-1][1] == 0.999
    assert prompt_of("math/3/a/b") == prompt_of("math/0/a/b") == "math/a/b" and prompt_of("train/Lake/7") == "train/Lake/7"


def test_a_group_has_its_rollouts_with_the_figures_of_each_token_and_nothing_that_steers(tmp_path):
    folder = make_run(tmp_path / "run", steps=1)
    turn = {"observation": HOSTILE, "action": "up", "reward": 0.5, "is_valid": True, "is_effective": False, "tokens": 3}
    turn["exchange"] = {"path": HOSTILE, "repeats": {"of": HOSTILE, HOSTILE: 2}, "request": {HOSTILE: [HOSTILE]}, "answer": None}
    more = {
        "response": HOSTILE,
        "reward_parts": {HOSTILE: 1.0, "bad": "x"},
        "trajectory": {"turns": [turn, "odd", turn | {"exchange": "odd"}]},
        "loss_mask": [True, False],
    }
    lines(
        folder / "samples.jsonl",
        [sample(1, 0, 2, **more), sample(1, 9, 0, prompt=None, response_ids=None, versions="x", trajectory=[])],
    )
    found = RunReader(folder).content("1/0")
    assert found["prompt"] == "1+1=" and [one["reward"] for one in found["samples"]] == [1.0, 0.0, 1.0]
    tokens = found["samples"][2]["tokens"]
    assert (
        tokens["versions"] == [[0, 1, 3, 0], [1, 2, 4, 1]]
        and tokens["trainer"] == [-0.5, -2.0]
        and tokens["mask"] == [True, False]
    )
    shown = json.dumps(found, ensure_ascii=False)
    assert not {"\x1b", "\u202e", "\x00"} & set(shown) and "\\\\u202e" in shown and "<script>" in shown
    first, second = found["samples"][2]["turns"]
    assert first["effective"] is False and first["exchange"]["repeats"].endswith("(2)") and "exchange" not in second
    assert RunReader(folder).content("1/9")["samples"][0]["tokens"]["ids"] == [] and RunReader(folder).content("1/77") is None


def test_turns_that_are_samples_of_their_own_make_one_rollout(tmp_path):
    folder = make_run(tmp_path / "run", steps=1)
    turn = {"observation": "a wall", "action": "up", "reward": 0.0, "is_valid": True, "is_effective": True, "tokens": 2}
    of = [{"turns": [turn], "first_turn": i, "num_turns": 3} for i in range(3)]
    lines(folder / "samples.jsonl", [sample(2, 50, 0, trajectory=one, reward=0.5) for one in of])
    lines(folder / "samples.jsonl", [sample(2, 50, 1, trajectory=of[0] | {"num_turns": 1}, reward=1.0)])
    (row,) = RunReader(folder).page(GroupQuery(step_from=2)).rows
    assert (row.rollouts, row.reward, row.length) == (2, 0.75, 4.0)
    found = RunReader(folder).content("2/50")
    assert [one["turn"] for one in found["samples"]] == [0, 1, 2, None] and (found["rollouts"], found["count"]) == (2, 4)


class Letters:
    """A tokenizer of bytes, as those of models are: half a character decodes to the mark of what is no text."""

    def decode(self, ids, skip_special_tokens):
        return bytes(ids).decode(errors="replace")


def test_pieces_of_tokens_make_up_the_text_with_characters_that_several_tokens_share():
    text = "naïve – ∑ 🤖 words and more words, and an end"
    pieces = Pieces(Letters()).of(list(text.encode()))
    assert "".join(pieces) == text and len(pieces) == len(text.encode()) and pieces[0] == "n"
    assert Pieces(Letters()).of([104, 0xF0, 0x9F]) == ["h", "", "\N{REPLACEMENT CHARACTER}"]
    assert Pieces(None).of([7, 8]) == ["7 ", "8 "]


def test_lanes_have_the_detail_that_a_picture_can_show_and_keep_all_time(tmp_path):
    spans = [("train", f"step {i}" if i % 100 == 0 else "busy", i * 1.0, i + (0.5 if i % 100 else 1.0), {}) for i in range(5_000)]
    trace(tmp_path, 1, spans[:2_500])
    trace(tmp_path, 2, [*spans[2_500:], ("weights", "flip", 10.0, 4_000.0, {"engines": [0]})])
    read = lanes.Lanes(tmp_path)
    assert read.look() and not read.look()
    picture = read.picture(None, None, 100)
    train, weights = picture["rows"]
    assert {row["name"] for row in picture["rows"]} == {"train", "weights"} and weights["spans"] == [
        [10.0, 4000.0, "flip", 1, {"engines": "[0]"}]
    ]
    assert len(train["spans"]) <= 100 and sum(one[3] for one in train["spans"]) == 5_000
    assert train["seconds"] == pytest.approx({"busy": 4950 * 0.5, "step #": 50.0})
    near = next(row for row in read.picture(100.0, 104.0, 1000)["rows"] if row["name"] == "train")
    assert [one[2] for one in near["spans"]] == ["step 100", "busy", "busy", "busy"]
    (tmp_path / "trace/trace-0002.json.gz").write_bytes(b"half a file")
    assert not read.look() and read.problem.startswith("trace-0002")


@pytest.mark.parametrize(
    ("summary", "state"),
    [
        ({"status": "finished"}, "finished"),
        ({"status": "failed", "reason": "an engine died"}, "failed"),
        ({"status": "running", "process": asdict(Process.this())}, "running"),
        ({"status": "running", "process": asdict(replace(Process.this(), pid=2**22 + 1))}, "crashed"),
        ({"status": "running", "process": asdict(replace(Process.this(), ticks=1))}, "crashed"),
        ({"status": "running", "process": asdict(replace(Process.this(), pid=2**22 + 1, boot="another"))}, "running"),
        ({"status": "running", "process": asdict(replace(Process.this(), pid=2**22 + 1, table="pid:[1]"))}, "running"),
        ({"status": "running", "process": {"pid": 2**22 + 1, "boot": [], "ticks": "1"}}, "running"),
    ],
)
def test_a_run_whose_process_is_gone_has_crashed(tmp_path, summary, state):
    folder = make_run(tmp_path / "run")
    (folder / "summary.json").write_text(json.dumps(summary | {"steps": 4, "wall_s": 8.0}))
    status = RunReader(folder).status()
    assert status["state"] == state and status["step"] == 4
    assert status["left_s"] == (12.0 if state == "running" else None)


def test_a_run_that_writes_nothing_is_silent_and_one_without_a_summary_unknown(tmp_path):
    folder = make_run(tmp_path / "run", status="running")
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    assert RunReader(folder).status()["state"] == "silent"
    (folder / "summary.json").unlink()
    assert RunReader(folder).status()["state"] == "unknown"
    (folder / "config.yaml").write_text("a: [")
    (folder / "summary.json").write_text("{")
    events = RunReader(folder).status()["events"]
    assert [event["level"] for event in events] == ["error", "error"]


def test_what_was_audited_before_the_run_stands_in_its_status(tmp_path):
    folder = make_run(tmp_path / "run")
    assert RunReader(folder).status()["audits"] == []
    earned = {"reference": 1.0, "random": 0.25, "constant": 0.5, "echo": 0.0, "injecting": "much"}
    coin = {"tasks": 40, "problems": ["pays for nonsense\u202e"], "notes": [], "changed": ["flips"], "earned": earned}
    (folder / "audits.json").write_text(json.dumps({"Coin": coin, "Odd": 7}))
    coin, odd = RunReader(folder).status()["audits"]
    assert coin["name"] == "Coin" and coin["tasks"] == 40 and coin["changed"] == ["flips"]
    assert (coin["reference"], coin["chance"], coin["best"], coin["pays"]) == (1.0, 0.25, "constant", 0.5)
    assert len(coin["problems"]) == 1 and "\u202e" not in coin["problems"][0]
    assert (odd["name"], odd["tasks"], odd["pays"], odd["problems"]) == ("Odd", None, None, [])


def test_journals_that_are_too_long_are_bounded_and_say_so(tmp_path, monkeypatch):
    folder = make_run(tmp_path / "run")
    for module, name in ((groups, "MOST_GROUPS"), (samples, "MOST_SAMPLES"), (metrics, "MOST_VALUES")):
        monkeypatch.setattr(module, name, 3)
    run = RunReader(folder)
    run.page(GroupQuery())
    run.curves(["critic/score/mean"])
    assert (len(run.statuses.groups), run.statuses.left_out, run.samples.left_out, run.metrics.left_out > 0) == (3, 9, 5, True)
    assert sum("left out" in event["text"] for event in run.status()["events"]) == 3


def test_configurations_differ_by_key_and_a_run_by_what_it_reached(tmp_path):
    one = RunReader(make_run(tmp_path / "one", actor_train={"training_args": {"learning_rate": 2e-4}}, seed=1))
    other = RunReader(make_run(tmp_path / "two"))
    found = differences([one.config, other.config])
    assert found == [["actor_train.training_args.learning_rate", "0.0002", "0.0001"], ["seed", "1", "–"]]
    assert differences([one.config, one.config]) == []
    assert reached(one) | {"tokens": 0} == {
        "steps": 4, "seconds": 12.0, "tokens": 0, "first": 0.25, "best": 0.75, "best_s": 12.0, "last": 0.75, "reward": 0.04,
        "gained": 0.5, "gained_per_s": pytest.approx(0.5 / 12),
    }  # fmt: skip


def test_rollouts_that_go_on_in_another_file_are_read_and_those_of_a_file_that_went_are_forgotten(tmp_path):
    folder = make_run(tmp_path / "one", steps=1, groups=1)
    run = RunReader(folder)
    lines(folder / "samples-000000000001000.jsonl", [sample(2, 9, 0), sample(2, 9, 1, reward=0.5)])
    lines(folder / "samples-000000000001000.rolled-back.jsonl", [sample(3, 10, 0)])
    assert list(run.content("2/9")["samples"][1].items())[:2] == [("index", 1), ("reward", 0.5)]
    assert list(run.samples.groups) == ["1/0", "2/9"]
    (folder / "samples.jsonl").unlink()
    lines(folder / "samples-000000000002000.jsonl", [sample(4, 11, 0)])
    run.look(run.samples)
    assert list(run.samples.groups) == ["2/9", "4/11"] and run.samples.of(0, 1) is None
    assert run.content("1/0") is None and run.content("4/11")["count"] == 1


def test_explorers_of_a_run_are_told_with_their_rates_versions_and_groups(tmp_path, monkeypatch):
    folder = with_explorers(make_run(tmp_path / "one", steps=0))
    run = RunReader(folder)
    told = {row["name"]: row for row in run.status()["members"]}
    assert told["first"]["state"] == "left" and told["first"]["groups"] == 2 * B and told["first"]["served"] == 1
    assert told["first"]["trained"] == B and told["first"]["groups_per_s"] == pytest.approx(2 * B / 60)
    assert told["second"]["groups"] == 1 and told["trainer"]["role"] == "trainer"
    assert told["second"]["late"] == told["first"]["late"] + 1 == 1 and run.problems == {}
    page = run.page(GroupQuery(explorer="first"))
    assert page.explorers == ["first", "second"] and [row.group_id for row in page.rows if row.group_id is not None] == [0, 1]
    assert run.content("2/4")["reason"] == "equal", "what an explorer wrote down of a group that it dropped"
    alive = members.Members(folder)
    assert [alive._state("x", "alive", 5, at) for at in (0.0, 9.0, 11.0)] == ["alive", "alive", "silent"]
    assert [alive._state("x", "alive", 6, at) for at in (12.0, 30.0)] == ["alive", "silent"]


def test_a_database_that_is_none_or_a_link_is_a_problem_and_nothing_else(tmp_path):
    folder = make_run(tmp_path / "one")
    assert RunReader(folder).status()["members"] == []
    (folder / "groups.db").write_text("no database" * 100)
    broken = RunReader(folder)
    assert broken.status()["members"] == [] and "groups.db: file is not a database" in broken.problems["members"]
    assert broken.status()["step"] == 4 and broken.page(GroupQuery()).total == 12
    (folder / "groups.db").rename(tmp_path / "elsewhere.db")
    (folder / "groups.db").symlink_to(tmp_path / "elsewhere.db")
    linked = RunReader(folder)
    assert linked.status()["members"] == [] and "is a link" in linked.problems["members"]

"""Spans of the turns of agents' episodes, as a collector of OpenTelemetry receives them."""

from collections import Counter, defaultdict

import pytest
from trace_collector import collecting, values

from roll.core.data.sample import Prompt, Sample, SampleGroup, Trajectory, Turn
from roll.core.record.trace import Trace
from roll.reports import spans as exported
from roll.reports.spans import CALL, STEP, SpanExport


@pytest.fixture
def collector():
    with collecting() as made:
        yield made


def children(collector):
    """The children of each group's span, and no text of an episode in one of them."""
    groups = {span.span_id: span for span in collector.spans if span.name == "group"}
    found = defaultdict(list)
    for span in collector.spans:
        if span.name in (CALL, STEP):
            group = groups[span.parent_span_id]
            assert span.trace_id == group.trace_id
            facts = values(span.attributes)
            assert facts["roll.group_id"] == values(group.attributes)["roll.group_id"]
            assert not [value for value in facts.values() if isinstance(value, str)]
            found[facts["roll.group_id"]].append((span, facts))
    assert found.keys() == {values(group.attributes)["roll.group_id"] for group in groups.values()}
    return found


@pytest.mark.slow
def test_each_turn_in_an_environment_is_a_call_of_the_policy_and_a_step(lab, make_config, collector):
    run = lab.run(make_config(max_steps=2, otlp_endpoint=collector.address))
    turns = Counter(len(each["trajectory"]["turns"]) for each in run.trained_samples())
    assert turns.keys() == {3}
    for told in children(collector).values():
        by_turn = defaultdict(dict)
        for span, facts in told:
            by_turn[facts["roll.episode"], facts["roll.turn"]][span.name] = (span, facts)
        assert {turn for _, turn in by_turn} == {1, 2, 3}
        for pair in by_turn.values():
            (call, of_call), (step, of_step) = pair[CALL], pair[STEP]
            assert call.start_time_unix_nano <= call.end_time_unix_nano == step.start_time_unix_nano <= step.end_time_unix_nano
            assert of_call["roll.tokens"] >= 1 and isinstance(of_step["roll.reward"], float)


@pytest.mark.slow
def test_each_call_of_a_program_is_a_span_and_carries_no_secret(lab, of_programs, collector):
    secret = {"custom_envs.letters.program.environment": {"SEARCH_API_KEY": "sk-very-secret"}}
    run = lab.run(of_programs(secret, max_steps=1, otlp_endpoint=collector.address))
    assert run.summary["groups"]["trained"] >= 1
    for told in children(collector).values():
        assert {span.name for span, _ in told} == {CALL}
        by_episode = defaultdict(list)
        for _, facts in told:
            by_episode[facts["roll.episode"]].append(facts["roll.turn"])
        assert all(sorted(numbers) == [1, 2, 3] for numbers in by_episode.values())
    assert not any(b"sk-very-secret" in request.SerializeToString() for _, request in collector.received)


def test_turns_beyond_the_most_of_a_group_are_left_out_and_counted(collector, monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(exported, "TURNS", 2)
    turns = [Turn("seen", "done", 1.0, "", True, True, 4, times=(at, at + 1.0, at + 2.0)) for at in range(5)]
    trajectory = Trajectory(turns, 0, 5, 5.0, True, "terminated")
    prompt = Prompt("uid", [1], "seen", "tag", "tag", "")
    sample = Sample(prompt, 0, [1], [0.0], [], "stop", trajectory=trajectory)
    export = SpanExport(collector.address, {})
    export.on_run_begin(0, [])
    export.follow(trace := Trace(tmp_path))
    export.on_group(SampleGroup(3, prompt, 0, [sample]), None)
    trace.enter_phase(3, "rollout")
    trace.end_group(3, {})
    export.on_run_end({})
    told = [facts["roll.turn"] for _, facts in children(collector)[3]]
    assert sorted(told) == [1, 1, 2, 2]
    assert "3 spans, or turns beyond 2 a group, were too many" in caplog.text

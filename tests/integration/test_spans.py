"""Spans of a whole run, as a collector of OpenTelemetry receives them; and a run whose collector is away."""

from collections import Counter

import pytest
from trace_collector import collecting, values

from roll.plan.rules.operating_rules import operating_problems
from roll.platform.ports import free_port
from roll.reports import spans
from roll.reports.spans import check_installed


@pytest.fixture
def collector():
    with collecting() as made:
        yield made


def test_a_collector_gets_groups_with_phases_steps_updates_and_validations(lab, make_config, with_validation, collector):
    run = lab.run(make_config(with_validation, max_steps=3, otlp_endpoint=collector.address))
    assert {path for path, _ in collector.received} == {"/v1/traces"}
    (of_run,) = {tuple(sorted(values(each.resource.attributes).items())) for each in collector.resources}
    assert {"service.name": "roll", "roll.run": run.run_dir.name, "roll.process": "driver"}.items() <= dict(of_run).items()
    found = collector.spans
    names = Counter(span.name for span in found)
    groups = run.summary["groups"]
    assert names["step"] == 3 and names["validation"] == len(run.summary["validation"])
    assert names["group"] == groups["trained"] + sum(groups["dropped"].values())
    assert names["weight update"] >= 3 and names["group rollout"] == groups["admitted"]

    by_id = {span.span_id: span for span in found}
    phases = [span for span in found if span.parent_span_id]
    assert {span.name for span in phases} <= {"group rollout", "group reward", "group buffered", "group training"}
    for span in phases:
        group = by_id[span.parent_span_id]
        assert group.trace_id == span.trace_id
        assert group.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano <= group.end_time_unix_nano
    steps = sorted((span for span in found if span.name == "step"), key=lambda span: span.start_time_unix_nano)
    assert [values(span.attributes)["roll.name"] for span in steps] == ["step 1", "step 2", "step 3"]
    assert values(steps[0].attributes)["roll.groups"] == 4 and not any(span.parent_span_id for span in steps)


def test_a_collector_that_is_away_costs_the_spans_and_one_warning(lab, make_config, caplog, monkeypatch):
    monkeypatch.setattr(spans, "SEND_S", 0.2)
    run = lab.run(make_config(max_steps=2, otlp_endpoint=f"http://me:my-password@127.0.0.1:{free_port()}"))
    assert run.summary["status"] == "finished"
    (told,) = [record.getMessage() for record in caplog.records if "otlp_endpoint" in record.getMessage()]
    assert "nobody takes spans" in told and "my-password" not in caplog.text


def test_a_missing_package_and_an_address_that_is_none_are_told_before_the_run(make_config, monkeypatch):
    monkeypatch.setattr(spans, "MODULES", ("opentelemetry.no_such_part",))
    with pytest.raises(ValueError, match=r"needs opentelemetry\.no_such_part, which is not installed"):
        check_installed()
    (problem,) = operating_problems(make_config(otlp_endpoint="127.0.0.1:4318"))
    assert (problem.key, problem.fix) == ("otlp_endpoint", "http://host:4318")

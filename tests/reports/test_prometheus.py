"""The page for Prometheus: names by its conventions, bounded labels, counters of groups that never fall."""

import json
import re
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from roll.core.configs.rlvr import RLVRConfig
from roll.core.record.run_progress import RunProgress
from roll.core.workers.infer_interface import EngineStats
from roll.plan.rules.addresses import listening_at
from roll.platform.ports import check_listening
from roll.reports.prometheus.accounts import FILE, Accounts
from roll.reports.prometheus.page import MetricsPage
from roll.reports.prometheus.series import GAUGES, MOST, MOST_OTHERS, MOST_OWN, REUSED, Families, accounts, of_metrics

DASHBOARD = Path(__file__).parents[2] / "examples/monitoring/dashboard.json"
ROW = {
    "step": 7,
    "staleness/mean": 0.5,
    "staleness/max": 1,
    "staleness/histogram": {"0": 2},
    "idle_share/actor_train": 0.25,
    "time/step_s": 2.0,
    "time/train_s": 1.5,
    "actor_train/grad_norm": 3.0,
    "actor/train_infer_kl": 0.001,
    "memory/driver_rss_mb": 2.0,
    "my/own metric": 5.0,
    "val_correct/all/mean": None,
}
GROUPS = {"admitted": 12, "trained": 8, "reused": 2, "buffered": 1, "in_flight": 2, "dropped": {"mean_filter": 1}}
SUMMARY = {
    "weight_updates": {"count": 3, "bytes": 100, "send_s": 0.5, "pause_s_mean": 0.1, "pause_s_max": 0.2},
    "throughput": {"samples_per_s": 4.0},
    "reward_errors": {"sums": 2},
    "samples_without_reward": {},
    "engine_restarts": 1,
    "trainer_recovery_s": [1.0],
    "alarms": [{}],
    "warnings": [],
    "best": {"step": 4, "value": 0.5},
}


@pytest.fixture
def page_of(tmp_path):
    pages = []

    def make(begin=0, rows=(), **config):
        said = []
        page = MetricsPage(RLVRConfig(metrics_address=":0", exp_name="e", **config), tmp_path, None, said.append)
        pages.append(page)
        page.on_run_begin(begin, list(rows))
        page.address = re.search(r"http://\S+", said[0])[0]
        return page

    yield make
    for page in pages:
        page.on_run_end({})


def fetched(page):
    """Samples of a page: (name, labels without those of all) -> value."""
    text = urllib.request.urlopen(page.address, timeout=10).read().decode()
    values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name not in ("run", "process")}
            values[sample.name, *sorted(labels.items())] = sample.value
            assert sample.name.startswith("process_") or sample.labels["run"] == "e"
    return values


def filled(page):
    page.on_step(7, ROW)
    page.on_refresh(RunProgress(step=7, max_steps=20, staleness_bound=1, groups=GROUPS))
    page.on_summary(dict(SUMMARY), None)
    page.engines = {0: EngineStats(version=6, running=3, queued=2, free_slots=1, generated_tokens=9, cache_use=0.75)}
    return page


def test_the_figures_of_a_run_are_served_in_base_units(page_of):
    values = fetched(filled(page_of()))
    assert values["roll_step",] == 7 and values["roll_steps_planned",] == 20
    assert values["roll_staleness_versions", ("statistic", "mean")] == 0.5
    assert values["roll_idle_ratio", ("role", "actor_train")] == 0.25
    assert values["roll_stage_seconds", ("stage", "train")] == 1.5 and values["roll_step_seconds",] == 2.0
    assert values["roll_memory_bytes", ("role", "driver")] == 2 * 2**20
    assert values["roll_metric", ("name", "my/own metric")] == 5.0
    assert values["roll_groups", ("state", "buffered")] == 1
    assert values["roll_groups_total", ("reason", ""), ("status", "trained")] == 8
    assert values["roll_groups_total", ("reason", "mean_filter"), ("status", "dropped")] == 1
    assert values["roll_group_reuses_total",] == 2
    assert values["roll_weight_update_send_seconds_total",] == 0.5
    assert values["roll_reward_errors_total", ("kind", "sums")] == 2
    assert values["roll_engine_requests", ("engine", "0"), ("state", "queued")] == 2
    assert values["roll_engine_kv_cache_used_ratio", ("engine", "0")] == 0.75
    assert values["roll_best_step",] == 4 and values["roll_alarms",] == 1
    assert not any("histogram" in str(key) or "accuracy" in key[0] for key in values), "what is no number has no sample"
    for name, *_ in values:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name) and not re.search(r"_(ms|mb|s|percent)$", name), name


def own(value, others=0):
    """What an engine's package measures itself."""
    samples = [["vllm:tokens_total", {"engine": "0", "model_name": "m"}, value]]
    more = [["vllm:state", {"engine": "0", "place": str(i)}, 1.0] for i in range(others)]
    return [
        {"name": "vllm:tokens", "kind": "counter", "help": "Tokens", "samples": samples},
        {"name": "vllm:state", "kind": "gauge", "help": "State", "samples": more},
    ]


def test_metrics_of_the_engines_package_are_passed_on_by_engine_and_bounded(page_of):
    page = page_of()
    page.own = {0: own(3.0), 2: own(5.0, others=2 * MOST_OWN)}
    values = fetched(page)
    assert values["vllm:tokens_total", ("engine", "0"), ("model_name", "m")] == 3
    assert values["vllm:tokens_total", ("engine", "2"), ("model_name", "m")] == 5
    assert sum(name.startswith("vllm:") for name, *_ in values) == 1 + MOST_OWN
    text = urllib.request.urlopen(page.address, timeout=10).read().decode()
    assert text.count("# TYPE vllm:tokens_total counter") == 1, "one family for all engines"
    page.own = dict.fromkeys(range(MOST + 7), own(1.0))
    assert sum(name == "vllm:tokens_total" for name, *_ in fetched(page)) == MOST


def test_a_counter_has_the_ending_of_counters_and_nothing_else_has(page_of):
    text = urllib.request.urlopen(filled(page_of()).address, timeout=10).read().decode()
    types = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    assert {name for name, kind in types.items() if kind == "counter"} == {name for name in types if name.endswith("_total")}
    assert len(types) > 30


def test_rows_of_before_are_served_when_a_run_goes_on(page_of):
    values = fetched(page_of(5, [{"step": 4, "actor/entropy": 1.0}, {"step": 5, "actor/entropy": 0.5}]))
    assert values["roll_entropy_nats",] == 0.5


def test_labels_are_bounded_whatever_a_run_measures():
    row = {f"time/{number}_s": 1.0 for number in range(MOST + 50)} | {f"own/{number}": 1.0 for number in range(MOST_OTHERS + 50)}
    sizes = {family.name: len(family.samples) for family in of_metrics(Families({}), row)}
    assert sizes == {"roll_stage_seconds": MOST, "roll_metric": MOST_OTHERS}


def test_each_pattern_has_a_label_for_what_it_leaves_open():
    for gauge in GAUGES:
        assert re.compile(gauge.pattern).groups == bool(gauge.label), gauge.name


def test_counters_of_groups_never_fall_and_go_on_after_a_resumption(tmp_path):
    first = Accounts(tmp_path, None)
    assert first.serve({"trained": 10, "dropped/old": 2, REUSED: 0})["trained"] == 10
    resumed = Accounts(tmp_path, None)
    assert resumed.serve({}) == {"trained": 10, "dropped/old": 2, REUSED: 0}, "series that were there are there at once"
    served = [resumed.serve({"trained": trained, REUSED: 0}) for trained in (6, 8, 10, 12)]
    assert [counts["trained"] for counts in served] == [10, 10, 10, 12], "what is done again is not counted again"
    assert all(counts["dropped/old"] == 2 for counts in served)
    assert json.loads((tmp_path / FILE).read_text()) == {"trained": 12, "dropped/old": 2, REUSED: 0}


@pytest.mark.parametrize("damage", [b"", b"[1]", b'{"trained": "x"}', b"\xff\xff", b"[" * 100_000])
def test_a_damaged_file_of_counters_is_none(tmp_path, damage):
    (tmp_path / FILE).write_bytes(damage)
    assert Accounts(tmp_path, None).serve({"trained": 3}) == {"trained": 3}


def test_a_disk_that_cannot_be_written_ends_no_scrape(tmp_path):
    served = Accounts(tmp_path / "gone", None)
    assert served.serve({"trained": 3}) == {"trained": 3} and served.serve({"trained": 2}) == {"trained": 3}


def test_accounts_name_each_group_once():
    assert accounts(GROUPS) == {"trained": 8, REUSED: 2, "dropped/mean_filter": 1}


def test_an_explorer_has_a_label_and_no_accounts_of_its_trainers(page_of):
    values = fetched(filled(page_of(mode="explore", explorer_name="one")))
    assert not any(key[0] == "roll_groups_total" for key in values)


def test_the_port_is_free_again_after_the_run(page_of):
    page = page_of()
    port = int(page.address.rsplit(":", 1)[1].split("/")[0])
    with pytest.raises(ValueError, match=r"nothing can listen at 127.0.0.1, port"):
        check_listening("127.0.0.1", port)
    page.on_run_end({})
    check_listening("127.0.0.1", port)


def test_a_client_that_says_nothing_keeps_nobody_waiting(page_of):
    page = filled(page_of())
    port = int(page.address.rsplit(":", 1)[1].split("/")[0])
    with socket.create_connection(("127.0.0.1", port)):
        assert fetched(page)["roll_step",] == 7


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (":9400", ("127.0.0.1", 9400)),
        (":0", ("127.0.0.1", 0)),
        ("0.0.0.0:9400", ("0.0.0.0", 9400)),
        ("[::1]:9400", ("::1", 9400)),
        ("host:0", ("host", 0)),
    ],
)
def test_the_address_is_this_machine_alone_unless_it_says_otherwise(written, meant):
    assert listening_at(written) == meant


@pytest.mark.parametrize("written", ["", ":", "host:", ":port", ":99999", "host:-1"])
def test_an_address_that_cannot_be_read_is_refused(written):
    with pytest.raises(ValueError, match=r"port|empty"):
        listening_at(written)


def test_the_dashboard_asks_for_series_that_there_are(page_of):
    """Those of runs with failures, devices and validations among them."""
    text = json.loads(DASHBOARD.read_text())
    asked = {name for panel in text["panels"] for each in panel["targets"] for name in re.findall(r"roll_\w+", each["expr"])}
    page = filled(page_of())
    failures = {"environment_failures": {"tag": 1}, "rollout_failures": {"x": 1}, "samples_without_reward": {"sums": 1}}
    page.on_summary(SUMMARY | failures, None)
    served = {name for name, *_ in fetched(page)} | {f"roll_{gauge.name}" for gauge in GAUGES}
    assert asked <= served, asked - served
    assert len(asked) > 25
    names = {variable["name"] for variable in text["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", DASHBOARD.read_text())) <= names | {"__all"}

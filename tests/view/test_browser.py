"""The page in a browser: what a reader sees and does, with no error in the console and no script of a model's."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pages
import pytest
from database_party import with_explorers
from pages import expect, opened, served
from run_files import HOSTILE, ended, lines, make_run, metric, sample

from roll.view.page import report
from roll.view.runs import Runs

pytestmark = pages.NEEDED


@pytest.fixture(scope="module")
def browser():
    with pages.browser() as opened:
        yield opened


def test_a_run_from_top_to_bottom_down_to_a_token(browser, tmp_path):
    make_run(tmp_path / "runs/one", steps=6, groups=3)
    with served(tmp_path / "runs") as address, opened(browser, address) as page:
        page.wait_for_selector(".chart .u-title")
        assert page.locator("#status strong").inner_text() == "finished" and "6 of 10" in page.locator("#status").inner_text()
        titles = page.locator(".chart .u-title").all_inner_texts()
        assert titles[:2] == ["Reward", "Validation"] and "Staleness, versions" in titles
        assert page.locator("#status .verdict").inner_text() == "learning: validation 0.250 → 0.750 (+0.500) in 6 steps"
        newest = page.locator("#status .newest").inner_text()
        assert "step 6" in newest and "1+1=" in newest and "2!" in newest and "reference" in newest
        expect(page.locator('[data-title="Reward"] figcaption')).to_contain_text("good: rises.")
        assert "step6" in page.locator('[data-title="Reward"] .u-legend').inner_text(), "nothing is pointed at: the last step"
        assert "trained" in page.locator(".funnel").inner_text() and "dropped: equal" in page.locator(".funnel").inner_text()
        page.locator('[data-title="Reward"] .u-over').click(position={"x": 3, "y": 40})  # the first point is step 1
        page.wait_for_url(re.compile("step_from=1"))
        expect(page.locator("table.groups tbody tr")).to_have_count(4)
        page.locator(".bins button").first.click()
        page.wait_for_url(re.compile("reward_from=0.5"))
        page.locator("table.groups tbody tr.kept").first.click()
        page.wait_for_selector(".samples article >> nth=1")
        assert "reward 0" in page.locator(".samples article").nth(1).inner_text()
        page.locator(".samples article").first.locator(".tokens span").nth(1).hover()
        pointed = page.locator(".pointed").inner_text()
        assert (
            "version 4" in pointed and "engine 1" in pointed and "log-prob -1" in pointed and "trainer / engine 0.3679" in pointed
        )
        page.locator("select[aria-label='colour of tokens']").select_option("ratio")
        colour = page.locator(".tokens span").nth(1).evaluate("node => node.style.background")
        assert colour.startswith("rgba(47, 111, 208")
        page.locator("select[aria-label='colour of tokens']").select_option("advantage")
        colour = page.locator(".tokens span").nth(1).evaluate("node => node.style.background")
        assert colour == "rgba(46, 139, 87, 0.8)" and "advantage 0.25" in page.locator(".bar .legend").inner_text()
        page.locator("select[aria-label='colour of tokens']").select_option("ratio")
        page.locator(".pointed a").click()
        with opened(browser, address, page.url.split("#")[1]) as again:
            again.wait_for_selector(".tokens .marked")
            assert again.locator("select[aria-label='colour of tokens']").input_value() == "ratio"


def test_what_a_program_sent_is_folded_beside_the_tokens_of_its_turn(browser, tmp_path):
    asked = {"model": "any", "messages": [{"role": "user", "content": "how much is a pear?"}], "tools": [{"name": "price"}]}
    exchange = {
        "path": "/v1/chat/completions",
        "repeats": {"of": "call_1", "tools": 2},
        "request": asked,
        "answer": {"id": "call_2"},
    }
    turn = {"observation": "o", "action": "a", "reward": 1.0, "is_valid": True, "is_effective": True, "tokens": 2}
    episode = {"turns": [turn, turn | {"exchange": exchange}], "first_turn": 0, "num_turns": 2}
    folder = make_run(tmp_path / "one", steps=1)
    lines(folder / "samples.jsonl", [sample(1, 9, 0, trajectory=episode)])
    with served(tmp_path) as address, opened(browser, address, "run=one&group=1%2F9") as page:
        page.wait_for_selector(".turns")
        (shown,) = page.locator(".turns .exchange").all()
        assert shown.inner_text() == "request /v1/chat/completions" and page.locator(".tokens span").count() == 2
        shown.locator("summary").click()
        told = shown.inner_text()
        assert '"content": "how much is a pear?"' in told and "repeats of call_1: tools (2)" in told and '"id": "call_2"' in told


def test_keys_lanes_and_any_metric(browser, tmp_path):
    make_run(tmp_path / "one", steps=3)
    with served(tmp_path) as address, opened(browser, address) as page:
        page.locator("#time canvas").dispatch_event("wheel", {"deltaY": 100})  # before anything is drawn
        page.wait_for_selector("table.groups tbody tr")
        expect(page.locator("#time summary")).to_be_visible()
        page.keyboard.press("j")
        page.keyboard.press("k")
        assert page.locator("tr.chosen td").nth(1).inner_text() == "0"
        page.keyboard.press("?")
        assert page.locator("dialog").is_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("/")
        page.keyboard.type("time/wait_for_batch_s")
        page.keyboard.press("Enter")
        page.wait_for_selector('[data-title="time/wait_for_batch_s"] .u-title')
        page.locator("#time canvas").click(position={"x": 1100, "y": 28})
        page.wait_for_selector("#time .details p")
        told = page.locator("#time .details").inner_text()
        assert "actor_train waiting for input, 1.0 s, from 2.0 s on" in told and "reason: 3 of 8" in told
        page.locator("#status").click()
        page.keyboard.press("t")
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
        page.wait_for_selector("table.groups tbody tr")
        page.keyboard.press("Enter")
        page.wait_for_selector(".samples article")
        page.keyboard.press("]")
        page.wait_for_url(re.compile(r"group=2%2F3"))
        page.keyboard.press("Escape")
        page.wait_for_selector("#curves")


def test_runs_are_compared(browser, tmp_path):
    make_run(tmp_path / "one", steps=3)
    make_run(tmp_path / "two", steps=5, actor_train={"training_args": {"learning_rate": 3e-4}})
    with served(tmp_path) as address, opened(browser, address, "compare=one&compare=two&x=seconds") as page:
        page.wait_for_selector("#compare table")
        shown = page.locator("#compare").inner_text()
        assert "actor_train.training_args.learning_rate" in shown and "0.0003" in shown and "gained per minute" in shown
        assert page.locator(".chart .u-title").first.inner_text() == "Reward"
        legend = page.locator('[data-title="critic/score/mean"] .u-legend').inner_text()
        assert "one" in legend and "two" in legend and "seconds" in legend


def test_half_a_line_is_waited_for(browser, tmp_path):
    folder = make_run(tmp_path / "one", status="running")
    text = json.dumps(metric(5)) + "\n"
    with served(tmp_path) as address, opened(browser, address) as page:
        page.wait_for_selector(".facts b")
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(text[:20])
        lines(folder / "groups.jsonl", [ended(99, 5)])
        assert page.locator(".facts b").first.inner_text() == "4 of 10"
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(text[20:])
        expect(page.locator(".facts b").first).to_have_text("5 of 10")
        expect(page.locator(".funnel")).to_contain_text("trained9")


def hostile_run(folder):
    """Every text that a model, an environment or a file can name."""
    make_run(folder, steps=1, **{HOSTILE: HOSTILE})
    turn = {"observation": HOSTILE, "action": HOSTILE, "reward": 1.0, "is_valid": False, "is_effective": True, "tokens": 1}
    turn["exchange"] = {"path": HOSTILE, "repeats": {"of": HOSTILE}, "request": {HOSTILE: HOSTILE}, "answer": HOSTILE}
    texts = {"prompt": HOSTILE * 3, "response": HOSTILE, "ground_truth": HOSTILE, "finish_reason": HOSTILE, "domain": HOSTILE}
    texts |= {"reward_parts": {HOSTILE: 1.0}, "trajectory": {"turns": [turn]}, "uid": HOSTILE}
    lines(
        folder / "metrics.jsonl", [metric(2, **{HOSTILE: 1.0, f"env/{HOSTILE}/success": 1.0, f"eval/{HOSTILE}/all/avg@1": 0.5})]
    )
    lines(folder / "groups.jsonl", [ended(7, 2, HOSTILE, HOSTILE, uid=HOSTILE)])
    lines(folder / "samples.jsonl", [sample(2, 7, 0, **texts), sample(2, 7, 1, **texts | {"response": "<b>" + "x" * 1_000_000})])
    summary = {
        "status": HOSTILE,
        "reason": HOSTILE,
        "warnings": [HOSTILE],
        "roles": [{"name": HOSTILE, "state": HOSTILE, "reason": HOSTILE}],
    }
    (folder / "summary.json").write_text(
        json.dumps(summary | {"idle_share": {HOSTILE: 0.5}, "groups": {"dropped": {HOSTILE: 1}}})
    )
    audit = {"tasks": 4, "earned": {HOSTILE: 1.0}, "problems": [HOSTILE], "notes": [HOSTILE], "changed": [HOSTILE]}
    (folder / "audits.json").write_text(json.dumps({HOSTILE: audit}))
    (folder / "stacks").mkdir()
    (folder / "stacks" / "<img src=x onerror=alert(1)>.txt").write_text("")
    return folder


@pytest.mark.parametrize("kind", ["ui", "report"])
def test_no_text_of_a_run_becomes_markup(browser, tmp_path, kind):
    hostile_run(tmp_path / "runs/<img src=x onerror=alert(1)>")
    make_run(tmp_path / "runs/other")
    (tmp_path / "report.html").write_bytes(report(Runs([tmp_path / "runs"]), 50))
    with served(tmp_path / "runs") as address:
        place = address if kind == "ui" else (tmp_path / "report.html").as_uri()
        run = "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E"
        for view, there in (
            (f"run={run}", "table.groups tbody tr"),
            (f"run={run}&group=2%2F7", ".samples article >> nth=1"),
            (f"compare={run}&compare=other", "#compare table"),
        ):
            with opened(browser, place, view) as page:
                page.wait_for_selector(there)
                text = page.locator("body").inner_text()
                assert "<script>" in text or "<img" in text, "it is shown as what it is"
                assert page.locator("main script, main img, main b b, textarea").count() == 0
                assert "\x1b" not in text and "\u202e" not in text


def test_a_report_needs_no_server(browser, tmp_path):
    make_run(tmp_path / "one", steps=4)
    (tmp_path / "report.html").write_bytes(report(Runs([tmp_path / "one"]), 50))
    with opened(browser, (tmp_path / "report.html").as_uri()) as page:
        page.wait_for_selector("table.groups tbody tr")
        assert "4 of 10" in page.locator("#status").inner_text()
        page.locator(".bins button").first.click()
        expect(page.locator("table.groups tbody tr")).to_have_count(4)
        page.locator("table.groups tbody tr.kept").first.click()
        page.wait_for_selector(".samples article >> nth=1")
        assert page.locator("meta[http-equiv]").get_attribute("content").count("sha256-") == 3


def test_it_can_be_read_on_a_telephone_explorers_included(browser, tmp_path):
    with ThreadPoolExecutor(1) as pool:  # the browser's loop runs in this thread
        pool.submit(with_explorers, make_run(tmp_path / "one", steps=2)).result()
    with served(tmp_path) as address, opened(browser, address) as page:
        page.set_viewport_size({"width": 380, "height": 700})
        for view in ("run=one", "run=one&group=1%2F0"):
            page.goto(f"{address.split('/?')[0]}/#{view}")
            page.wait_for_selector(".samples article" if "group" in view else "table.groups tbody tr")
            assert page.evaluate("document.documentElement.scrollWidth") <= 380
            assert all(link.is_visible() for link in page.locator(".top nav a").all())
            bins = page.locator(".bins button").all()
            assert all(one.bounding_box()["x"] + one.bounding_box()["width"] <= 380 for one in bins)
            if "group" in view:
                assert not page.locator(".pointed").is_visible(), "an empty bar would hide a line"
            else:
                reward = page.locator("table.groups th", has_text="reward").bounding_box()
                assert reward["x"] + reward["width"] <= 380
        page.keyboard.press("Escape")
        first = page.locator("#status table tr", has_text="first")
        assert "left" in first.inner_text()
        first.locator("a").first.click()
        page.wait_for_url(re.compile("explorer=first"))
        expect(page.locator("table.groups tbody tr")).to_have_count(6)
        first.locator("a", has_text="its page").click()
        expect(page.locator(".top select")).to_have_value("one/explorers/first")


def test_a_sweep_is_shown_as_time_against_staleness(browser, tmp_path):
    """Two of these lag more than `one`, and one of them is slower, too."""
    for name, seconds, lag in (("one", 3.0, 0.5), ("fast", 1.0, 2.0), ("late", 4.0, 1.0)):
        folder = make_run(tmp_path / name, steps=4)
        rows = [metric(step) | {"time/elapsed_s": step * seconds, "staleness/mean": lag} for step in range(1, 5)]
        (folder / "metrics.jsonl").unlink()
        lines(folder / "metrics.jsonl", rows)
    file = tmp_path / "report.html"
    file.write_bytes(report(Runs([tmp_path]), groups=1))
    with served(tmp_path) as address:
        for place in (address, file.as_uri()):
            with opened(browser, place, "compare=") as page:
                page.wait_for_selector("#frontier circle")
                assert page.locator("#frontier circle").count() == 3 and page.locator("#frontier circle.best").count() == 2
                assert page.locator("#frontier tbody tr").all_inner_texts() == ["one\t3.0 s\t0.5", "fast\t1.0 s\t2"]
                page.locator("#frontier circle:not(.best)").click()
                page.wait_for_url(re.compile("run=late"))

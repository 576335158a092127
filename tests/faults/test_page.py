"""The page beside a run that really trains, and crashes."""

import re
import signal

import pages
from pages import expect, opened, served

pytestmark = pages.NEEDED


def test_a_run_comes_to_the_page_by_itself_and_its_crash_too(launch):
    """The page is opened before the first step, and nothing is pressed. The run's process is killed, and the page says so."""
    run = launch("max_steps=100000", "save_steps=100000", "eval_steps=100000")
    run.wait_for("the folder", lambda: (run.dir / "config.yaml").exists() and (run.dir / "metrics.jsonl").exists())
    with pages.browser() as browser, served(run.folder) as address, opened(browser, address, "run=run") as page:
        reached = page.locator(".facts b").first
        expect(reached).to_have_text(re.compile(r"^\d+ of 100,000"), timeout=90_000)
        before = int(reached.inner_text().split()[0])
        expect(reached).not_to_have_text(re.compile(rf"^({before}|{before + 1}) of"), timeout=60_000)
        expect(page.locator('[data-title="Reward"] .u-legend')).to_be_visible()
        assert page.locator("#status strong").inner_text() == "running"
        expect(page.locator("#status table")).to_contain_text("actor_train", timeout=60_000)
        run.signal(signal.SIGKILL)
        run.end()
        expect(page.locator("#status strong")).to_have_text(re.compile("crashed|failed"))
    metrics, groups = (run.dir / name for name in ("metrics.jsonl", "groups.jsonl"))
    assert '"time/elapsed_s": ' in metrics.read_text() and '"rewards": [' in groups.read_text()

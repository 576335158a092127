"""A browser and the page in it, for tests of `roll ui`. Without Playwright and chromium there are none."""

import os
import shutil
import threading
from contextlib import contextmanager

import pytest

from roll.view.server import Serving

sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
expect = sync_api.expect
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NEEDED = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: apt install chromium)"),
]
PATIENCE_MS = 20_000
expect.set_options(timeout=PATIENCE_MS)


@contextmanager
def browser():
    with sync_api.sync_playwright() as playwright:
        sandbox = [] if os.getuid() else ["--no-sandbox"]  # chromium refuses to run as root with it
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield found
        found.close()


@contextmanager
def opened(browser, address, view="", **options):
    """A page whose console stays silent, and which asks nobody else."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, **options)
    page, said = context.new_page(), []
    page.set_default_timeout(PATIENCE_MS)
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(error.stack or str(error)))
    page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}") or dialog.dismiss())
    origin = address.split("/?")[0]
    page.on("request", lambda asked: said.append(asked.url) if not asked.url.startswith((origin, "data:")) else None)
    page.goto(address)
    if view:
        page.goto(f"{origin}/#{view}" if address.startswith("http") else f"{address}#{view}")
    yield page
    context.close()
    assert said == []


@contextmanager
def served(*folders):
    serving = Serving(list(folders), 0)
    thread = threading.Thread(target=serving.run)
    thread.start()
    try:
        yield serving.address
    finally:
        serving.stop()
        thread.join()

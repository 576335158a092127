"""The documentation as a site: built without a warning, and closed in itself."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-f", str(ROOT / "mkdocs.yml"), "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder


class Loads(HTMLParser):
    """What a browser fetches for a page by itself."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.found.append(attributes.get("src") or "")
        elif tag == "link" and attributes.get("rel") != "canonical":
            self.found.append(attributes.get("href") or "")


def test_no_page_fetches_anything_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text())
        assert not [source for source in loads.found if re.match(r"(https?:)?//", source)], page


def test_a_formula_is_mathml_and_a_name_of_the_programming_interface_has_its_docstring(site):
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in (site / "pg_variants/tis.html").read_text()
    assert not [page for page in site.rglob("*.html") if 'class="arithmatex"' in page.read_text()]
    assert "A stage named" in (site / "api.html").read_text()


def test_files_beside_the_documentation_are_pages_too(site):
    assert "SECURITY.html" in (site / "index.html").read_text()
    assert (site / "project/benchmarks/index.html").is_file()


def test_a_dead_link_is_a_failure(tmp_path):
    for name in ("mkdocs.yml", "tools", "docs_roll", "README.md", "roll"):
        (tmp_path / name).symlink_to(ROOT / name)
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "index.md").write_text("[nowhere](there.md) and [no anchor](#there)\n")
    written = (ROOT / "mkdocs.yml").read_text().replace("docs_dir: docs_roll", "docs_dir: pages")
    (tmp_path / "other.yml").write_text(re.sub(r"\nnav:.*", "\nnav: [index.md]\n", written, flags=re.DOTALL))
    command = [sys.executable, "-m", "mkdocs", "build", "-f", "other.yml", "-d", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "there.md" in done.stderr and "#there" in done.stderr

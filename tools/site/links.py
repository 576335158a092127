"""Pages of the documentation link to files of the project that lie beside their folder. The site has those files, too.

A hook of MkDocs. `docs_roll/X` is the page `X` of the site, and any other file of the project that a page links to is
`project/<its path>`. A link to what is not there is left as it is, and MkDocs complains of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
DOCS, OTHERS = "docs_roll/", "project/"
LINK = re.compile(r"(\]\(|(?:src|href)=\")([^)\s\"#:]+)(?=[#)\"])")
"""The target of a link, an image or an HTML attribute, without its anchor."""


def on_files(files: Files, config: Any) -> Files:
    wanted = [DOCS + file.src_uri for file in files if file.src_uri.endswith(".md")]
    seen = set(wanted)
    while wanted:
        path = wanted.pop()
        for target in linked(path, (ROOT / path).read_text(encoding="utf-8")) if path.endswith(".md") else ():
            if target not in seen:
                seen.add(target)
                wanted.append(target)
                if not target.startswith(DOCS):
                    files.append(File.generated(config, site_path(target), abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    path = project_path(page.file.src_uri)

    def rewritten(link: re.Match[str]) -> str:
        target = resolved(path, link[2])
        if target is None:
            return link[0]
        return link[1] + os.path.relpath(site_path(target), os.path.dirname(page.file.src_uri))

    return LINK.sub(rewritten, markdown)


def linked(path: str, markdown: str) -> Iterator[str]:
    """The files of the project to which a page links."""
    for link in LINK.finditer(markdown):
        if (target := resolved(path, link[2])) is not None:
            yield target


def resolved(path: str, link: str) -> str | None:
    """The file that `link` means on the page `path`, of a folder its README; None if the project has no such file."""
    target = os.path.normpath(os.path.join(os.path.dirname(path), link))
    if (ROOT / target / "README.md").is_file():
        target += "/README.md"
    return target if not target.startswith("..") and (ROOT / target).is_file() else None


def site_path(path: str) -> str:
    return path.removeprefix(DOCS) if path.startswith(DOCS) else OTHERS + path


def project_path(uri: str) -> str:
    return uri.removeprefix(OTHERS) if uri.startswith(OTHERS) else DOCS + uri

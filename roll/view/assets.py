"""The style and the scripts of the page, each as one text: a server has three files to send, and a report holds them."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import NamedTuple

MODULES = (
    "dom", "link", "offline", "source", "chart", "curves", "status", "lanes", "groups", "tokens", "group", "compare", "app",
)  # fmt: skip
"""Each after those that it imports."""


class Assets(NamedTuple):
    style: str
    chart: str
    """uPlot, as it was released."""
    script: str
    """The modules as one: what they import from each other is there already."""


def assets() -> Assets:
    parts = (re.sub(r"^import .*\n", "", text(f"{name}.js"), flags=re.MULTILINE) for name in MODULES)
    script = "\n".join(re.sub(r"^export ", "", part, flags=re.MULTILINE) for part in parts)
    return Assets(text("uPlot.min.css") + text("style.css"), text("uPlot.iife.min.js"), script)


def text(name: str) -> str:
    return (files("roll.view") / "static" / name).read_text(encoding="utf-8")

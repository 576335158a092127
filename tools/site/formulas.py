"""Formulas become MathML, which browsers show without a script. A hook of MkDocs."""

from __future__ import annotations

import re
from html import unescape

from latex2mathml.converter import convert

FORMULA = re.compile(r"<(div|span) class=\"arithmatex\">\\[\[(](.*?)\\[\])]</\1>", re.DOTALL)


def on_page_content(html: str, **_: object) -> str:
    return FORMULA.sub(_mathml, html)


def _mathml(found: re.Match[str]) -> str:
    return convert(unescape(found[2]).strip(), display="block" if found[1] == "div" else "inline")

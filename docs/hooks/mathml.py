"""Formulas as MathML, made when the site is built, so that a page needs no script and fetches nothing.

`pymdownx.arithmatex` marks each formula; here its text becomes MathML, which every browser of today can draw.
"""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.S)
# Bars of norms: browsers take them for operators, with spaces, and stretch them under an exponent.
_BAR = re.compile(r"<mo(?: fence=\"false\")?(?: stretchy=\"false\")?>(&#x02016;|&#x0007C;)</mo>")
_BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.S)


def formula(latex: str, display: str) -> str:
    """One formula as MathML."""
    made = convert(latex, display=display)
    return _BAR.sub(r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', made)


def formulas(page: str) -> str:
    """The HTML of a page with every marked formula as MathML."""
    page = _INLINE.sub(lambda found: formula(html.unescape(found[1]), "inline"), page)
    return _BLOCK.sub(
        lambda found: f'<div class="formula">{formula(html.unescape(found[1]), "block")}</div>', page
    )


def on_page_content(text: str, **_: Any) -> str:
    """What mkdocs calls with the HTML of each page."""
    return formulas(text)

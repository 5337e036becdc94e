"""Figures of pages with the mark ``<!-- figures -->``: their code runs when the site is built."""

from __future__ import annotations

import base64
import html
import io
import re
from typing import Any

_MARK = "<!-- figures -->"
_CODE = re.compile(r"^```python\n(.*?)^```\n", re.M | re.S)


def with_figures(text: str) -> str:
    """Markdown, with what each block of code has drawn below it."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    namespace: dict[str, Any] = {}

    def drawn(block: re.Match[str]) -> str:
        exec(block[1], namespace)  # noqa: S102  # the code of our own page
        figures = []
        for number in pyplot.get_fignums():
            figure, file = pyplot.figure(number), io.BytesIO()
            figure.savefig(file, format="svg")
            data = base64.b64encode(file.getvalue()).decode()
            axes = figure.axes[0]
            says = [*axes.get_legend_handles_labels()[1], axes.get_xlabel(), axes.get_ylabel()]
            alt = html.escape(", ".join(filter(None, says)))
            figures.append(f'\n<p><img alt="{alt}" src="data:image/svg+xml;base64,{data}"></p>\n')
        pyplot.close("all")
        return block[0] + "".join(figures)

    return _CODE.sub(drawn, text)


def on_page_markdown(text: str, **_: Any) -> str:
    """What mkdocs calls with the Markdown of each page."""
    return with_figures(text) if _MARK in text else text

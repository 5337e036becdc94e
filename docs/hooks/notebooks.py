"""Notebooks as pages, with what they showed when they were last executed: no script, and nothing fetched."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

_PLACE = re.compile(r"<!-- notebook: (\S+) -->")


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


def _output(output: dict[str, Any]) -> str:
    """One output of a cell as Markdown: a plot, a table, or text."""
    if output["output_type"] == "stream":
        return f"```text\n{_joined(output['text']).rstrip()}\n```"
    data = output["data"]
    if "image/png" in data:
        what = html.escape(_joined(data.get("text/plain", "a plot")).strip("<>"))
        return f'<p><img alt="{what}" src="data:image/png;base64,{_joined(data["image/png"]).strip()}"></p>'
    if "text/html" in data:  # on one line: Markdown ends HTML at the first empty one
        return f"<div>{' '.join(_joined(data['text/html']).split())}</div>"
    return f"```text\n{_joined(data['text/plain']).rstrip()}\n```"


def markdown(notebook: dict[str, Any]) -> str:
    """All cells of a notebook with their outputs, as Markdown."""
    parts = []
    for cell in notebook["cells"]:
        source = _joined(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += map(_output, cell["outputs"])
    return "\n\n".join(parts)


def on_page_markdown(text: str, *, page: Any, **_: Any) -> str:
    """What mkdocs calls with the Markdown of each page."""

    def displayed(found: re.Match[str]) -> str:
        file = Path(page.file.abs_src_path).parent / found[1]
        return markdown(json.loads(file.read_text(encoding="utf-8")))

    return _PLACE.sub(displayed, text)

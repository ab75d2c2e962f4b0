"""Parts of a page: sections, tables, plots side by side."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_narrow.charts.report_style import stacked


def section(title: str, *parts: str) -> str:
    """Return a section of the page."""
    return f"<section><h2>{title}</h2>{''.join(parts)}</section>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], kind: str) -> str:
    """Return a table whose cells are HTML; ``kind``: its class in the style sheet."""
    top = "".join(f'<th scope="col">{label}</th>' for label in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    head = f"<thead><tr>{top}</tr></thead>"
    content = f'<div class="scroll"><table class="{kind}">{head}<tbody>{body}</tbody></table></div>'
    return stacked(kind, header) + content


def plots(drawn: Sequence[str]) -> str:
    """Return plots side by side, below each other on small screens."""
    return '<div class="plots">' + "".join(f'<div class="scroll">{plot}</div>' for plot in drawn) + "</div>"


def details(summary: str, content: str) -> str:
    """Return a section that opens when its summary is clicked."""
    return f"<details><summary>{summary}</summary>{content}</details>"

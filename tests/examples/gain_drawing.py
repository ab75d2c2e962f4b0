"""Bytes, time and accuracy in float and in int8 as bars, drawn from the table of the measurements."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.examples.chain_drawing import FILL, INK, SOFT, card

FLOAT, INT8 = "float", "`--target ort-cpu`"
"""The rows of the table that are drawn."""

_TABLE = re.compile(r"^\| \|(?: [^|]+: bytes \| time \| top-1 \|)+\n\|[-|]+\n(?:\|.+\n)+", re.MULTILINE)
_BLUE = "#25629f"
_LEFT, _COLUMN, _BAR, _GROUP, _TOP = 96, 286, 150, 62, 92


class Figures(NamedTuple):
    """Of a model: bytes of its file, time of a sample relative to the float model, share of first choices."""

    size: int
    time: float
    top1: float


def read_table(text: str) -> tuple[list[str], dict[str, list[Figures]]]:
    """Return the models of the table in a document, and for each of its rows their figures."""
    head, _, *rows = find_table(text).splitlines()
    titles = re.findall(r"\| ([^|]+): bytes", head)
    return titles, {name: list(_figures(cells)) for name, *cells in map(_cells, rows)}


def find_table(text: str) -> str:
    """Return the table itself; ValueError for a document without one."""
    found = _TABLE.search(text)
    if not found:
        raise ValueError("the document has no table of bytes, time and top-1")
    return found[0]


def drawing(titles: list[str], rows: dict[str, list[Figures]]) -> str:
    """Return a column of bars for each model: bytes, time and accuracy, float above int8."""
    parts = [_legend()]
    for i, name in enumerate(("bytes", "time", "accuracy")):
        parts.append(_text(_LEFT - 14, _TOP + i * _GROUP + 24, name, INK, 14, "end"))
    for column, title in enumerate(titles):
        x = _LEFT + column * _COLUMN
        parts.append(_text(x, _TOP - 14, title, INK, 14))
        plain, small = rows[FLOAT][column], rows[INT8][column]
        bars = [
            (1.0, f"{plain.size / 1000:,.0f} kB", small.size / plain.size, f"{small.size / 1000:,.0f} kB"),
            (1.0, "1.00", small.time, f"{small.time:.2f}"),
            (plain.top1, f"{plain.top1:.1%}", small.top1, f"{small.top1:.1%}"),
        ]
        for i, (before, words, after, words_after) in enumerate(bars):
            y = _TOP + i * _GROUP
            parts += [*_bar(x, y, before, words, FILL), *_bar(x, y + 20, after, words_after, _BLUE)]
    title = "Bytes, time and accuracy in float and in int8"
    return card(_LEFT + _COLUMN * len(titles) + 8, _TOP + 3 * _GROUP, "".join(parts), title)


def _legend() -> str:
    boxes = ((_LEFT, FILL, "float32"), (_LEFT + 100, _BLUE, "int8"))
    return "".join(
        f'<rect x="{x}" y="24" width="14" height="14" fill="{color}"/>{_text(x + 22, 36, words, INK, 14)}'
        for x, color, words in boxes
    )


def _bar(x: int, y: int, share: float, words: str, color: str) -> list[str]:
    width = round(_BAR * share, 1)
    return [
        f'<rect x="{x}" y="{y}" width="{width}" height="17" rx="2" fill="{color}"/>',
        _text(x + width + 8, y + 13, words, SOFT, 13),
    ]


def _text(x: float, y: float, words: str, color: str, size: int, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" fill="{color}" font-size="{size}" text-anchor="{anchor}">{words}</text>'


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("| ").split(" | ")]


def _figures(cells: list[str]) -> list[Figures]:
    triples = zip(*[iter(cells)] * 3, strict=True)
    return [
        Figures(int(size.replace(",", "")), float(time), round(float(top1.rstrip("%")) / 100, 4))
        for size, time, top1 in triples
    ]

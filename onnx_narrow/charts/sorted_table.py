"""A table that sorts by any of its columns, without a script: radio buttons and the order of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from onnx_narrow.charts.report_style import stacked


@dataclass(frozen=True)
class Column:
    """A column: its title, cells as HTML, and numbers to sort by, the largest first; None: not sortable."""

    title: str
    cells: Sequence[str]
    numbers: Sequence[float] | None = None


def sorted_table(name: str, columns: Sequence[Column]) -> str:
    """Return a table with a button for each sortable column; the first one is selected.

    ``name`` is that of its buttons, of letters alone; NaN come last.
    """
    count = len(columns[0].cells)
    sortable = [(i, column.numbers) for i, column in enumerate(columns) if column.numbers is not None]
    rules = [
        f".{name}{{display:grid;grid-template-columns:repeat({len(columns)},auto)}}",
        f".{name} :is(thead,tbody,tr){{display:contents}}",
    ]
    buttons = []
    for i, numbers in sortable:
        key = f"{name}{i}"
        checked = " checked" if i == sortable[0][0] else ""
        title = escape(columns[i].title)
        buttons.append(
            f'<input type="radio" name="{name}" id="{key}"{checked}><label for="{key}">{title}</label>'
        )
        order = sorted(range(count), key=lambda row: (numbers[row] != numbers[row], -numbers[row]))
        places = {row: place for place, row in enumerate(order, 1)}
        rules += [f"#{key}:checked~.scroll .{name}r{row}>td{{order:{places[row]}}}" for row in range(count)]
    head = "".join(f'<th scope="col">{escape(column.title)}</th>' for column in columns)
    rows = "".join(
        f'<tr class="{name}r{row}">{"".join(f"<td>{column.cells[row]}</td>" for column in columns)}</tr>'
        for row in range(count)
    )
    table = f'<table class="{name}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    rules.append(f"@media (max-width: 34rem){{.scroll .{name}{{display:grid;grid-template-columns:1fr}}}}")
    return (
        f"<style>{''.join(rules)}</style>"
        f"{stacked(name, [column.title for column in columns])}"
        f'<div class="sorted"><span>Sort by</span>{"".join(buttons)}<div class="scroll">{table}</div></div>'
    )

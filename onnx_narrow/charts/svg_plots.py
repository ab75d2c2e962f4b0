"""Plots as inline SVG, coloured by the style sheet of the page they stand in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 260
_ROUNDED = 150.0  # dB: what float32 rounds; masks of huge constants are beyond
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 14, 40


@dataclass(frozen=True)
class Point:
    """A dot at x, y with a tooltip; ``kind`` is its CSS class. An infinite y lies on the edge."""

    x: float
    y: float
    title: str
    kind: str


@dataclass(frozen=True)
class Frame:
    """The plotting area with its ranges of x and y."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        """Return the horizontal place of a value, in units of the drawing."""
        return _LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Return the vertical place of a value, kept inside the area."""
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return HEIGHT - _BOTTOM - min(1.0, max(0.0, share)) * (HEIGHT - _BOTTOM - _TOP)


def scatter(points: Sequence[Point], x_label: str, y_label: str, title: str) -> str:
    """Return a plot of dots over positions 1, 2, 3 ... on x; huge values lie on the edge and set no axis."""
    finite = [point.y for point in points if math.isfinite(point.y) and abs(point.y) <= _ROUNDED] or [0.0]
    ticks = nice_ticks(min(0.0, *finite), max(*finite, 1.0))
    frame = Frame(0, max((point.x for point in points), default=1) + 1, ticks[0], ticks[-1])
    dots = "".join(
        f'<circle class="{point.kind}" cx="{frame.x(point.x):.1f}" cy="{frame.y(point.y):.1f}" r="3">'
        f"<title>{escape(point.title)}</title></circle>"
        for point in points
    )
    x_ticks = [t for t in nice_ticks(0, frame.x_high) if t <= frame.x_high and t == int(t)]
    axes = _axes(frame, x_ticks, {tick: f"{tick:g}" for tick in ticks}, x_label, y_label)
    return _drawing(title, axes + dots)


def histogram(
    edges: Sequence[float], filled: Sequence[int], outlined: Sequence[int], x_label: str, title: str
) -> str:
    """Return filled columns and the outline of a second histogram, counts on a logarithmic axis."""
    frame, columns = _columns(edges, filled, max(*filled, *outlined), x_label)
    line = _step_path(frame, edges, outlined, closed=False)
    return _drawing(title, f'{columns}<path class="outline" d="{line}"/>')


def grid_plot(
    edges: Sequence[float], filled: Sequence[int], grid: dict[float, int], x_label: str, title: str
) -> str:
    """Return filled columns with a stem at each value of a grid, as high as its count."""
    frame, columns = _columns(edges, filled, max([*filled, *grid.values()]), x_label)
    stems = "".join(
        f'<g class="stem"><title>{value:.6g}: {count} value{"s" * (count > 1)}</title>'
        f'<path d="M{frame.x(value):.1f} {frame.y(0):.1f}V{frame.y(_log(count)):.1f}"/>'
        f'<circle cx="{frame.x(value):.1f}" cy="{frame.y(_log(count)):.1f}" r="2.5"/></g>'
        for value, count in sorted(grid.items())
    )
    return _drawing(title, columns + stems)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about ``count`` round numbers that enclose the range."""
    span = (high - low) or 1.0
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def _columns(edges: Sequence[float], counts: Sequence[int], largest: int, x_label: str) -> tuple[Frame, str]:
    """Return a frame with 0 at the bottom, then powers of ten, and its axes and filled columns."""
    powers = range(1, max(1, math.ceil(math.log10(largest + 1))) + 1)
    ticks = {_log(10**power): f"{10**power:,}" if power < 4 else f"1e{power}" for power in powers}
    frame = Frame(edges[0], edges[-1], 0.0, max(ticks))
    inside = [tick for tick in nice_ticks(edges[0], edges[-1]) if edges[0] <= tick <= edges[-1]]
    area = _step_path(frame, edges, counts, closed=True)
    axes = _axes(frame, inside, {0.0: "0", **ticks}, x_label, "values")
    return frame, f'{axes}<path class="area" d="{area}"/>'


def _log(count: int) -> float:
    return math.log10(1 + count)


def _step_path(frame: Frame, edges: Sequence[float], counts: Sequence[int], *, closed: bool) -> str:
    base = frame.y(0)
    steps = [
        f"V{frame.y(_log(int(n))):.1f}H{frame.x(right):.1f}"
        for n, right in zip(counts, edges[1:], strict=True)
    ]
    return f"M{frame.x(edges[0]):.1f} {base:.1f}" + "".join(steps) + f"V{base:.1f}" + ("Z" if closed else "")


def _axes(
    frame: Frame, x_ticks: Sequence[float], y_ticks: Mapping[float, str], x_label: str, y_label: str
) -> str:
    """Return both axes; ``y_ticks``: what stands at each value."""
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    elements = []
    for value, text in y_ticks.items():
        y = frame.y(value)
        elements.append(f'<path class="rule" d="M{_LEFT} {y:.1f}H{right}"/>')
        elements.append(_text("tick", f'x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end"', text))
    for value in x_ticks:
        x = f"{frame.x(value):.1f}"
        elements.append(f'<path class="rule" d="M{x} {bottom}v4"/>')
        elements.append(_text("tick", f'x="{x}" y="{bottom + 16}" text-anchor="middle"', f"{value:g}"))
    below = f'x="{(_LEFT + right) / 2}" y="{HEIGHT - 6}" text-anchor="middle"'
    beside = f'text-anchor="middle" transform="translate(12 {(bottom + _TOP) / 2}) rotate(-90)"'
    return "".join([*elements, _text("label", below, x_label), _text("label", beside, y_label)])


def _text(kind: str, place: str, text: str) -> str:
    return f'<text class="{kind}" {place}>{escape(text)}</text>'


def _drawing(title: str, content: str) -> str:
    label = escape(title, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{content}</svg>'

"""The first section of the page of ``tools.report``: where the loss begins, why, and the remedies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from onnx_narrow.charts.html_parts import details, plots, table
from onnx_narrow.charts.sorted_table import Column, sorted_table
from onnx_narrow.charts.svg_plots import Point, scatter
from onnx_narrow.summaries import origins as words
from onnx_narrow.summaries.advice import helps
from onnx_narrow.summaries.model_history import ModelHistory
from onnx_narrow.summaries.words import figure
from transforms.graph.some_names import counted
from transforms.origins.loss_origins import LayerLoss, LossOrigins, OutputLoss

_LEAST_SHARE = 1e-12


def origins_section(origins: LossOrigins, history: ModelHistory) -> str:
    """Return the section as HTML."""
    alarms = "".join(f'<p class="alarm">{escape(line)}</p>' for line in words.suspects(origins))
    content = [
        f'<h2>Where the loss begins</h2><p class="lead">{escape(words.headline(origins))}</p>{alarms}',
        _named(origins),
        _helps(origins, history),
        _outputs(origins),
        _plots(origins),
        _every_layer(origins),
    ]
    return f'<section class="first">{"".join(content)}</section>'


def _named(origins: LossOrigins) -> str:
    rows = "".join(
        f"<li>{', '.join(f'{_name(layer)} <b>{_percent(layer, origins.main)}</b>' for layer in layers)}"
        f"<small>{escape(cause)}</small></li>"
        for cause, places in words.by_cause(origins)
        if (layers := [origins.layers[place] for place in places])
    )
    return f'<ol class="causes">{rows}</ol>' if rows else ""


def _helps(origins: LossOrigins, history: ModelHistory) -> str:
    items = "".join(
        f"<p>{escape(remedy)}</p><code>{_unbroken(call)}</code>" for remedy, call in helps(origins, history)
    )
    return f'<h3>What helps</h3><div class="helps">{items}</div>' if items else ""


def _unbroken(command: str) -> str:
    """Return a command whose lines break between words: a browser would break at hyphens, too."""
    return " ".join(f"<span>{escape(word)}</span>" for word in command.split(" "))


def _outputs(origins: LossOrigins) -> str:
    if len(origins.outputs) < 2:
        return ""
    rows = [
        [
            f"<code>{escape(output.name)}</code><small>{'cache' if output.is_cache else ''}</small>",
            words.decibels(output.sqnr),
            words.decibels(output.without),
            ", ".join(_name(origins.layers[place]) for place in output.named[:3]) + _more(output.named[3:]),
        ]
        for output in origins.outputs
    ]
    titles = ("Output", "SQNR, pooled", "Without its layers", "Layers of half its error")
    return (
        "<h3>Outputs</h3><p>Results first, the worst of them at the top; caches and states, which are fed "
        f"back, below.</p>{table(titles, rows, 'outputs')}"
    )


def _more(others: Sequence[object]) -> str:
    return " ..." if others else ""


def _plots(origins: LossOrigins) -> str:
    main = origins.main.name
    quality, shares = list[Point](), list[Point]()
    for place, layer in enumerate(origins.layers, 1):
        name = layer.part.name
        quality.append(Point(place, layer.own, f"{name}: own error alone {layer.own:.1f} dB", "ring"))
        quality.append(Point(place, layer.total, f"{name}: all errors {layer.total:.1f} dB", "dot"))
        share = 100 * layer.shares[main]
        shares.append(
            Point(place, share, f"{name}: {share:.1f} %", "bad" if place - 1 in origins.main.named else "dot")
        )
    axis = "layer, in the order of the model"
    drawn = (
        scatter(shares, axis, "share, %", "share of each layer in the error of the output"),
        scatter(quality, axis, "SQNR, dB", "SQNR of the output of each layer"),
    )
    return (
        "<h3>Layer by layer</h3><p>Left: what each layer alone does to the output, as a share of what all "
        "do; those named above stand out. Right, at the layer itself, after the Relu or Clip that follows: "
        "rings are its own rounding of inputs, weights and output with float inputs, dots all errors.</p>"
        f"{plots(drawn)}"
    )


def _every_layer(origins: LossOrigins) -> str:
    main, layers, count = origins.main, origins.layers, len(origins.layers)
    shares = [layer.shares[main.name] for layer in layers]
    errors = {
        "Own, dB": [layer.own for layer in layers],
        "Inherited, dB": [layer.inherited for layer in layers],
        "All, dB": [layer.total for layer in layers],
    }
    columns = [
        Column("Place", [str(i + 1) for i in range(count)], [float(-i) for i in range(count)]),
        Column("Layer", [_name(layer) for layer in layers]),
        Column("Operator", [escape(layer.part.op) for layer in layers]),
        Column("Share", [_percent(layer, main) for layer in layers], shares),
        *(
            Column(title, [*map(_decibels, sqnr)], [-value for value in sqnr])
            for title, sqnr in errors.items()
        ),
    ]
    content = sorted_table("origins", columns) + "".join(_notes(origins))
    return details(f"All {count} layers that compute with rounded numbers", content)


def _notes(origins: LossOrigins) -> Iterator[str]:
    yield f"<p>Measured on {counted(origins.samples, 'sample')}, one layer quantized at a time.</p>"
    if origins.unpaired:
        names = ", ".join(f"<code>{escape(name)}</code>" for name in origins.unpaired[:6])
        lost = "Nodes without a counterpart in the float model, counted with their consumers"
        yield f"<p>{lost}: {names}{_more(origins.unpaired[6:])}</p>"


def _name(layer: LayerLoss) -> str:
    title = escape(", ".join(layer.part.nodes), quote=True)
    return f'<code title="{title}">{escape(layer.part.name)}</code>'


def _percent(layer: LayerLoss, main: OutputLoss) -> str:
    share = layer.shares[main.name]
    return f"{100 * share:.1f} %" if share > _LEAST_SHARE else "0 %"


def _decibels(value: float) -> str:
    return "no error" if value == math.inf else figure(value)

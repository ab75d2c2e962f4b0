"""The first section of the page of ``tools.report``: where the loss begins, why, and what helps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from onnx_narrow.charts.report_style import stacked
from onnx_narrow.charts.sorted_table import Column, sorted_table
from onnx_narrow.charts.svg_plots import Point, scatter
from onnx_narrow.summaries import origins as words
from onnx_narrow.summaries.advice import helps
from onnx_narrow.summaries.made import Made
from onnx_narrow.summaries.words import figure
from transforms.origins.loss_origins import LayerLoss, LossOrigins, OutputLoss

_LEAST_SHARE = 1e-12


def origins_section(found: LossOrigins, made: Made) -> str:
    """Return the section as HTML."""
    alarms = "".join(f'<p class="alarm">{escape(line)}</p>' for line in words.suspects(found))
    parts = [
        f'<h2>Where the loss begins</h2><p class="lead">{escape(words.headline(found))}</p>{alarms}',
        _named(found),
        _helps(found, made),
        _outputs(found),
        _plots(found),
        _every_layer(found),
    ]
    return f'<section class="first">{"".join(parts)}</section>'


def _named(found: LossOrigins) -> str:
    rows = "".join(
        f"<li>{', '.join(f'{_name(one)} <b>{_percent(one, found.main)}</b>' for one in layers)}"
        f"<small>{escape(cause)}</small></li>"
        for cause, places in words.by_cause(found)
        if (layers := [found.layers[place] for place in places])
    )
    return f'<ol class="causes">{rows}</ol>' if rows else ""


def _helps(found: LossOrigins, made: Made) -> str:
    items = "".join(
        f"<p>{escape(what)}</p><code>{_unbroken(command)}</code>" for what, command in helps(found, made)
    )
    return f'<h3>What helps</h3><div class="helps">{items}</div>' if items else ""


def _unbroken(command: str) -> str:
    """Return a command whose lines break between words: a browser would break at hyphens, too."""
    return " ".join(f"<span>{escape(word)}</span>" for word in command.split(" "))


def _outputs(found: LossOrigins) -> str:
    if len(found.outputs) < 2:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(one.name)}</code><small>{words.output_words(one)}</small></td>"
        f"<td>{words.decibels(one.sqnr)}</td><td>{words.decibels(one.without)}</td>"
        f"<td>{', '.join(_name(found.layers[place]) for place in one.named[:3])}"
        f"{' ...' if one.named[3:] else ''}</td></tr>"
        for one in found.outputs
    )
    titles = ("Output", "SQNR, pooled", "Without its layers", "Layers of half its error")
    head = f"<tr>{''.join(f'<th>{title}</th>' for title in titles)}</tr>"
    return (
        "<h3>Outputs</h3><p>Results first, the worst of them at the top; caches and states, which are fed "
        f'back, below.</p><div class="scroll"><table class="outputs"><thead>{head}</thead>'
        f"<tbody>{rows}</tbody></table></div>{stacked('outputs', titles)}"
    )


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
    plots = (
        scatter(shares, axis, "share, %", "share of each layer in the error of the output"),
        scatter(quality, axis, "SQNR, dB", "SQNR of the output of each layer"),
    )
    drawn = "".join(f'<div class="scroll">{plot}</div>' for plot in plots)
    return (
        "<h3>Layer by layer</h3><p>Left: what each layer alone does to the output, as a share of what all "
        "do; those named above stand out. Right, at the layer itself, after the Relu or Clip that follows: "
        "rings are its own rounding of inputs, weights and output with float inputs, dots all errors.</p>"
        f'<div class="plots">{drawn}</div>'
    )


def _every_layer(origins: LossOrigins) -> str:
    main, layers = origins.main, origins.layers
    columns = [
        Column("Place", [str(i + 1) for i in range(len(layers))], [float(-i) for i in range(len(layers))]),
        Column("Layer", [_name(layer) for layer in layers]),
        Column("Operator", [escape(layer.part.op) for layer in layers]),
        Column(
            "Share",
            [_percent(layer, main) for layer in layers],
            [layer.shares[main.name] for layer in layers],
        ),
        Column("Own, dB", [_decibels(layer.own) for layer in layers], [-layer.own for layer in layers]),
        Column(
            "Inherited, dB",
            [_decibels(layer.inherited) for layer in layers],
            [-layer.inherited for layer in layers],
        ),
        Column("All, dB", [_decibels(layer.total) for layer in layers], [-layer.total for layer in layers]),
    ]
    return (
        f"<details><summary>All {len(layers)} layers that compute with rounded numbers</summary>"
        f"{sorted_table('origins', columns)}{''.join(_notes(origins))}</details>"
    )


def _notes(found: LossOrigins) -> Iterator[str]:
    count = found.samples
    yield f"<p>Measured on {count} sample{'s' if count > 1 else ''}, one layer quantized at a time.</p>"
    if found.unpaired:
        names = ", ".join(f"<code>{escape(name)}</code>" for name in found.unpaired[:6])
        more = " ..." if found.unpaired[6:] else ""
        words = "Nodes without a counterpart in the float model, counted with their consumers"
        yield f"<p>{words}: {names}{more}</p>"


def _name(one: LayerLoss) -> str:
    title = escape(", ".join(one.part.nodes), quote=True)
    return f'<code title="{title}">{escape(one.part.name)}</code>'


def _percent(one: LayerLoss, main: OutputLoss) -> str:
    share = one.shares[main.name]
    return f"{100 * share:.1f} %" if share > _LEAST_SHARE else "0 %"


def _decibels(value: float) -> str:
    return "no error" if value == math.inf else figure(value)

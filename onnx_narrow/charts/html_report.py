"""The page of ``tools.report``: one HTML file without scripts, that loads nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from onnx_narrow.charts.html_parts import details, plots, section, table
from onnx_narrow.charts.report_style import META, STYLE
from onnx_narrow.charts.svg_plots import Point, grid_plot, histogram, scatter
from onnx_narrow.summaries.results import view_lines
from onnx_narrow.summaries.timing import against, at_speed, duration
from onnx_narrow.summaries.unequal_results import unequal_lines
from onnx_narrow.summaries.words import figure
from transforms.graph.some_names import counted

if TYPE_CHECKING:
    from transforms.compare.compare_models import ModelComparison
    from transforms.compare.grid_histogram import GridHistogram
    from transforms.compare.tensor_statistics import LayerStatistics

_WORST_ROWS = 12
_LOOK = 3.0  # dB below the target that ask for a look: twice its error
_KINDS = {
    "Activations": "Dots: all errors up to this layer, against the float model. Rings: this layer's own "
    "rounding alone, where the value before it is at hand. A layer that hurts is a step down of the dots.",
    "Weights": "Each weight as the quantized model uses it, against the float model's.",
}
_HISTOGRAMS = (
    "<p>Left: all values, float (filled) and quantized (line), counts on a logarithmic scale. Right: a close "
    "look at some typical values, with a stem at each value that the quantized tensor takes there.</p>"
)
_RESULT_METRICS = (
    ("cosine", "cos similarity"),
    ("l2", "l2 distance"),
    ("psnr", "psnr, dB"),
    ("ssim", "ssim"),
    ("sqnr", "sqnr, dB"),
)


_LAYER_COLUMNS = (
    *("#", "Tensor", "Operator", "Format", "SQNR, dB", "Own rounding, dB", "Cosine"),
    "Range of float values",
)


def page(comparison: ModelComparison, lead: str = "", target: float | None = None) -> str:
    """Return the whole page; ``lead``: its first section; ``target``: SQNR in dB that marks its tiles."""
    names = [escape(model.name) for model in comparison.models]
    body = "".join(
        [
            f'<header><p class="kind">Quantization report</p><h1>{names[1]}</h1>',
            f"<p>compared with {names[0]} on {comparison.samples} samples</p></header>",
            _tiles(comparison, target),
            lead,
            _models(comparison),
            _results(comparison),
            *(_layers(comparison, kind) for kind in _KINDS),
            _histograms(comparison),
            _all_layers(comparison),
        ]
    )
    head = f"{META}<title>{names[1]}</title>{STYLE}"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _tiles(comparison: ModelComparison, target: float | None) -> str:
    mean, worst = _mean_and_worst(comparison, None)
    outputs = comparison.output_sqnr
    name, sqnr = outputs[0] if outputs else ("", None)
    of_output = f" of the worst output, '{escape(name)}'" if len(outputs) > 1 else ""
    float_model, quantized = comparison.models
    tiles = [
        (f"SQNR{of_output}, {counted(comparison.samples, 'sample')} pooled", f"{figure(sqnr)} dB"),
        ("SQNR of the worst sample", f"{figure(worst['sqnr'])} dB"),
        ("Cosine similarity, mean", figure(mean["cosine"], 6)),
        ("Size against float", f"{100 * quantized.size / float_model.size:.0f} %"),
        ("Time against float", at_speed(comparison.costs.ratio)),
    ]
    judged = {tiles[0][0]: sqnr, tiles[1][0]: worst["sqnr"]}
    items = "".join(
        f"<div{_verdict(judged.get(label), target)}><dt>{label}</dt><dd>{value}</dd></div>"
        for label, value in tiles
    )
    return f'<dl class="tiles">{items}</dl>'


def _verdict(value: float | None, target: float | None) -> str:
    """Return the class of a tile: good from the target on, bad where more than twice the error is left."""
    if target is None or value is None:
        return ""
    kind = "good" if value >= target else "look" if value >= target - _LOOK else "bad"
    return f' class="{kind}"'


def _models(comparison: ModelComparison) -> str:
    costs = comparison.costs
    columns = list(zip(comparison.models, (costs.before, costs.made), strict=True))
    rows = [
        ("File size", [_bytes(model.size) for model, _ in columns]),
        ("Opset", [str(model.opset) for model, _ in columns]),
        ("Nodes", [_nodes(model.nodes, model.subgraphs) for model, _ in columns]),
        ("Weights, stored as", [_counts(model.weights) for model, _ in columns]),
        ("Nodes that round, to", [_counts(model.roundings) for model, _ in columns]),
        ("Operators", [_counts(model.operators) for model, _ in columns]),
        ("Time to open", [f"{1e3 * measured.load_seconds:.1f} ms" for _, measured in columns]),
        ("Time per sample: median, quartiles", [duration(measured.run) for _, measured in columns]),
        ("Peak memory to open and run", [_bytes(measured.peak_bytes) for _, measured in columns]),
    ]
    measured_of = table(["", "Float", "Quantized"], [[label, *cells] for label, cells in rows], "models")
    note = (
        "Time and memory are those of this machine, where narrow formats may be emulated by extra nodes. "
        f"Both models took turns, {costs.made.run.runs} times each, and what counts is the processor's time: "
        f"{against(costs.ratio)}."
    )
    if comparison.widened:
        note += (
            f" The runtime has no bfloat16 kernels: {comparison.widened} nodes and ends of the quantized "
            "model ran in float32 between Casts added in memory."
        )
    return section("Models", measured_of, f"<p>{note}</p>", _record(comparison))


def _record(comparison: ModelComparison) -> str:
    """Return the record of what was tried when the quantized model was made; nothing without one."""
    lines = _items(escape(line) for line in comparison.models[1].record)
    return lines and f"<h3>What outputs on samples decided</h3>{lines}"


def _items(texts: Iterable[str]) -> str:
    """Return a list, nothing without items."""
    items = "".join(f"<li>{text}</li>" for text in texts)
    return items and f"<ul>{items}</ul>"


def _results(comparison: ModelComparison) -> str:
    outputs = dict.fromkeys(result.output for result in comparison.results)
    rows = []
    for output in sorted(outputs, key=comparison.view.caches.__contains__):
        mean, worst = _mean_and_worst(comparison, output)
        cells = [
            f"{figure(mean[key], 6)}<small>{figure(worst[key], 6)}</small>" for key, _ in _RESULT_METRICS
        ]
        rows.append([f"<code>{escape(output)}</code>", *cells])
    figures = table(["Output", *(label for _, label in _RESULT_METRICS)], rows, "figures")
    bad, notes = sum(not result.is_finite for result in comparison.results), ""
    if bad:
        words = "results hold NaN or infinite elements and are left out of these figures"
        notes = f'<p class="alarm">{bad} {words}.</p>'
    reasons = (result.why_no_ssim for result in comparison.results if not result.mismatch)
    left_out = [f"ssim left out: {reason}" for reason in filter(None, reasons)][:1]
    lines = (*unequal_lines(comparison.results), *view_lines(comparison.view), *left_out)
    notes += "".join(f"<p>{escape(line)}.</p>" for line in lines)
    intro = "<p>Mean over the samples, and below it the worst of them.</p>"
    return section("End to end", intro, figures, notes)


def _layers(comparison: ModelComparison, kind: str) -> str:
    layers = _of_kind(comparison.layers, kind)
    if not layers:
        return section(kind, "<p>None of the float model's are in the quantized one.</p>")
    ranked = sorted(layers, key=lambda layer: layer.total.sqnr())
    title, order, by_rank = f"SQNR of {kind.lower()}", _dots(layers, kind), _dots(ranked, kind)
    drawn = (
        scatter(order, "position in execution order", "SQNR, dB", f"{title} in execution order"),
        scatter(by_rank, "rank, worst first", "SQNR, dB", f"{title}, sorted"),
    )
    identical = sum(layer.total.sqnr() == math.inf for layer in layers)
    above = f" {identical} of {len(layers)} are identical and lie on the upper edge." if identical else ""
    worst = _layer_table(ranked[:_WORST_ROWS], comparison.layers)
    intro = f"<p>{_KINDS[kind]}{above}</p>"
    return section(kind, intro, plots(drawn), "<h3>Lowest SQNR, samples pooled</h3>", worst)


def _dots(layers: Sequence[LayerStatistics], kind: str) -> list[Point]:
    points = []
    for i, layer in enumerate(layers, 1):
        name = layer.match.name
        if layer.own.count and kind == "Activations":
            points.append(
                Point(i, layer.own.sqnr(), f"{name}: own rounding {layer.own.sqnr():.1f} dB", "ring")
            )
        if layer.total.non_finite:
            points.append(Point(i, -math.inf, f"{name}: {layer.total.non_finite} NaN or infinite", "bad"))
        else:
            points.append(Point(i, layer.total.sqnr(), f"{name}: {layer.total.sqnr():.1f} dB", "dot"))
    return points


def _histograms(comparison: ModelComparison) -> str:
    histograms = [
        _histogram(layer, counts)
        for layer, counts in zip(comparison.worst, comparison.histograms, strict=True)
        if counts.original.any()
    ]
    return section("The worst tensors and their grids", _HISTOGRAMS, *histograms) if histograms else ""


def _histogram(layer: LayerStatistics, counts: GridHistogram) -> str:
    name = layer.match.name
    edges, before, after = (array.tolist() for array in (counts.edges, counts.original, counts.rounded))
    drawn = [histogram(edges, before, after, "value", f"values of {name}")]
    if counts.zoom_edges is not None and counts.zoom_grid:
        near = counts.zoom_edges.tolist(), counts.zoom_original.tolist()
        drawn.append(grid_plot(*near, counts.zoom_grid, "value", f"grid of {name}"))
    facts = f"{_kind_of(layer)} of {layer.match.op}, {layer.match.format}, {figure(layer.total.sqnr())} dB"
    return f"<h3><code>{escape(name)}</code> <span>{escape(facts)}</span></h3>{plots(drawn)}"


def _all_layers(comparison: ModelComparison) -> str:
    every = _layer_table(comparison.layers, comparison.layers)
    names = _items(f"<code>{escape(name)}</code>" for name in comparison.missing)
    lost = f"{len(comparison.missing)} tensors of the float model without a counterpart"
    inner = max(model.subgraphs for model in comparison.models)
    note = f"<p>Tensors inside the {inner} bodies of If, Loop and Scan are not compared.</p>" if inner else ""
    missing = details(f"{lost}: fused, folded or renamed", names) if names else ""
    shown = details(f"{len(comparison.layers)} tensors in execution order", every)
    return section("All layers", shown, missing, note)


def _layer_table(layers: Iterable[LayerStatistics], order: Sequence[LayerStatistics]) -> str:
    place, rows = {id(layer): i for i, layer in enumerate(order, 1)}, []
    for layer in layers:
        own_rounding = figure(layer.own.sqnr()) if layer.own.count else "-"
        extent = f"{layer.low:.4g} ... {layer.high:.4g}" if layer.low <= layer.high else "-"
        match, total = layer.match, layer.total
        tensor = f"<code>{escape(match.name)}</code>"
        if match.layer not in ("", match.name):
            tensor += f"<small>{escape(match.layer)}</small>"
        sqnr = f"{total.non_finite} NaN or inf" if total.non_finite else figure(total.sqnr())
        figures = [sqnr, own_rounding, figure(total.cosine(), 6), escape(layer.mismatch or extent)]
        if not total.count:
            figures[::2] = ["-", "-"]
        rows.append([str(place[id(layer)]), tensor, escape(match.op), escape(match.format), *figures])
    return table(_LAYER_COLUMNS, rows, "layers")


def _mean_and_worst(
    comparison: ModelComparison, output: str | None
) -> tuple[dict[str, float | None], dict[str, float | None]]:
    from transforms.compare.compare_results import summarize

    chosen = [one for one in comparison.results if one.output == output] if output else comparison.counted
    summary = summarize(chosen)
    return summary.mean, summary.worst


def _of_kind(layers: Sequence[LayerStatistics], kind: str) -> list[LayerStatistics]:
    return [one for one in layers if _kind_of(one) + "s" == kind and one.total.count]


def _kind_of(one: LayerStatistics) -> str:
    return "Weight" if one.match.is_weight else "Activation"


def _nodes(count: int, subgraphs: int) -> str:
    return f"{count} in {subgraphs + 1} graphs" if subgraphs else str(count)


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{escape(name)} <b>{count:,}</b>" for name, count in counter.most_common()) or "none"


def _bytes(size: int | None) -> str:
    if size is None:
        return "not measured"
    return f"{size / 1e6:,.2f} MB"

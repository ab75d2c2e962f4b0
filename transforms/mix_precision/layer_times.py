"""How long each layer of a model takes in each format on this machine."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.mix_precision.candidates import Candidate, layers_of
from transforms.mix_precision.cut_layer import cut_layer, float_raw, layer_ends
from transforms.mix_precision.mixed_model import MixedModel
from transforms.mix_precision.sensitivity import Sensitivity
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.quantize_steps import Quantized, finish_nodes
from transforms.run.instrumented_model import InstrumentedModel
from transforms.run.turns import Seconds, Timer, Timing, saving
from transforms.runtime.session import RunOptions
from transforms.scheme.layer_rule import LayerRule

_SECONDS = 60.0
"""About how long all layers together are timed, sessions being opened aside."""


@dataclass(frozen=True)
class LayerTime:
    """Seconds of a layer alone: in float, in the baseline's formats, and by label in those it may get.

    ``saved``: seconds less than in the baseline's, by label, with the quartiles.
    """

    layer: str
    op: str
    float_run: Timing
    baseline: Timing
    runs: Mapping[str, Timing]
    saved: Mapping[str, Timing]

    @classmethod
    def of(cls, one: Candidate, labels: Sequence[str], seconds: Sequence[Seconds]) -> LayerTime:
        """Return the times of a layer from those of its runs: float, the baseline, each label."""
        by_label = dict(zip(labels, seconds[2:], strict=True))
        return cls(
            one.name,
            one.op,
            Timing.of(seconds[0]),
            Timing.of(seconds[1]),
            {label: Timing.of(found) for label, found in by_label.items()},
            {label: saving(seconds[1], found) for label, found in by_label.items()},
        )


@dataclass(frozen=True)
class TimeTable:
    """The times of all candidates, in their order."""

    layers: tuple[LayerTime, ...]

    @property
    def saved(self) -> dict[tuple[str, str], float]:
        """Seconds saved, by layer and label, where that is beyond the spread: in three of four rounds."""
        return {
            (one.layer, label): saved.median
            for one in self.layers
            for label, saved in one.saved.items()
            if saved.low > 0
        }

    def to_csv(self, sensitivity: Sensitivity) -> str:
        """Return a line for each layer and format: its sensitivity, and its seconds."""
        rows = self._rows(sensitivity)
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def to_json(self, sensitivity: Sensitivity) -> str:
        """Return the sensitivities as they are written alone, with ``times``: the seconds of each format."""
        head = json.loads(sensitivity.to_json())
        harms = ("value", "harm")
        times = [
            {key: number for key, number in row.items() if key not in harms}
            for row in self._rows(sensitivity)
        ]
        return json.dumps({**head, "times": times}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def _rows(self, sensitivity: Sensitivity) -> list[dict[str, str | float]]:
        known = {one.layer: one for one in self.layers}
        rows: list[dict[str, str | float]] = []
        for damage in sensitivity.damages:
            one = known[damage.layer]
            run, saved = one.runs[damage.label], one.saved[damage.label]
            rows.append(
                {
                    **{"layer": one.layer, "op": one.op, "label": damage.label},
                    **{"value": damage.value, "harm": damage.harm},
                    **_seconds("", run),
                    **_seconds("baseline_", one.baseline),
                    **_seconds("float_", one.float_run),
                    **_seconds("saved_", saved),
                    "runs": run.runs,
                }
            )
        return rows


def time_layers(
    model: MixedModel,
    candidates: Sequence[Candidate],
    choices: Sequence[LayerRule],
    feed: Feed,
    run: RunOptions,
    timer: Timer,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> TimeTable:
    """Return the seconds of each layer alone, as in the model, on what it reads of one sample.

    A layer has its bias, Relu or Clip with it, and the roundings of what it reads and makes: that is what it
    takes between layers of other formats. It is quantized with all others in the same format, so that what it
    makes is in that format, too.
    """
    nodes = layers_of(model.graph)
    ends = {one.name: layer_ends(model.graph, nodes[one.name]) for one in candidates}
    cut = list(_cut(model, candidates, choices, ends))
    read = dict.fromkeys(str(t.name) for layer in cut for graph in layer for t in graph.inputs)
    arrays = InstrumentedModel(model.graph, read, run).run(feed)
    labels = [choice.label for choice in choices]
    times: list[LayerTime] = []
    end = time.perf_counter() + _SECONDS
    for number, (one, graphs) in enumerate(zip(candidates, cut, strict=True)):
        share = max(0.0, end - time.perf_counter()) / (len(candidates) - number)
        times.append(LayerTime.of(one, labels, timer(graphs, [arrays], run, share)))
        if progress:
            progress(number + 1, len(candidates))
    return TimeTable(tuple(times))


def _cut(
    model: MixedModel,
    candidates: Sequence[Candidate],
    choices: Sequence[LayerRule],
    ends: Mapping[str, Mapping[str, frozenset[str]]],
) -> Iterator[list[gs.Graph]]:
    """Yield each layer alone: in float, in the formats of the baseline, in each of the choices."""
    plain = copy_graph(model.graph)
    mixes = [{}, *({one.name: choice for one in candidates} for choice in choices)]
    mixed = [model.build(mix, finished=False) for mix in mixes]
    known = float_raw(plain)
    for one in candidates:
        graphs: list[gs.Graph] = [cut_layer(one.name, plain, known, ends[one.name])]
        for other in mixed:
            graph = cut_layer(one.name, other.graph, other.raw, ends[one.name])
            finish_nodes(graph, model.scheme, Quantized())
            graphs.append(graph)
        yield graphs


def _seconds(prefix: str, timing: Timing) -> dict[str, str | float]:
    parts = (("seconds", timing.median), ("low", timing.low), ("high", timing.high))
    return {f"{prefix}{name}": number for name, number in parts}

"""Everything that a report measures of a quantized model against its float model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ops.metrics import Sums, row_centred
from transforms import model_io
from transforms.compare.as_quantized import as_quantized
from transforms.compare.compare_results import Comparison, compare_arrays, without_metrics
from transforms.compare.describe_model import ModelDescription, describe_model
from transforms.compare.grid_histogram import GridHistogram
from transforms.compare.match_tensors import match_tensors
from transforms.compare.measure_run import Costs, Data, measure_both
from transforms.compare.tensor_statistics import LayerStatistics, SideBySide
from transforms.conversion.quantized_already import refuse_swapped
from transforms.conversion.rows import features_of
from transforms.graph.output_view import ALL, OutputView, output_view
from transforms.run.run_model import open_model

__all__ = ["Data", "ModelComparison", "compare_models", "worst_layers"]

Progress = Callable[[Iterable, str], Iterable]
"""Wraps an iterable of samples to show progress; the second argument names the task."""


@dataclass
class ModelComparison:
    """The two models and their differences; ``histograms`` belong to ``worst``, in order.

    ``view``: how outputs were compared; ``pooled``: sums over all samples for each output that has numbers
    in both models.
    """

    models: tuple[ModelDescription, ModelDescription]
    costs: Costs
    widened: int
    samples: int
    results: list[Comparison]
    layers: list[LayerStatistics]
    missing: list[str]
    worst: list[LayerStatistics]
    histograms: list[GridHistogram]
    view: OutputView = ALL
    pooled: Mapping[str, Sums] = field(default_factory=dict)

    @property
    def counted(self) -> list[Comparison]:
        """The results without those of caches beside logits."""
        return [one for one in self.results if one.output not in self.view.caches]

    @property
    def output_sqnr(self) -> list[tuple[str, float]]:
        """The outputs with their SQNR in dB, pooled over all samples, the worst first; without caches."""
        found = [(name, sums.sqnr()) for name, sums in self.pooled.items() if name not in self.view.caches]
        return sorted(found, key=lambda one: one[1])


def compare_models(
    float_path: Path, quantized_path: Path, data: Data, *, worst: int = 6, progress: Progress | None = None
) -> ModelComparison:
    """Run both models on all samples and return their differences, with histograms of the ``worst`` layers.

    The samples are read three times (results, layers, histograms) and never kept. Raises ValueError if the
    models have different inputs or outputs, or are swapped, and as ``open_model`` and ``Samples`` do.
    """
    progress = progress or (lambda samples, task: samples)
    graphs = model_io.load(float_path), model_io.load(quantized_path)
    refuse_swapped(*graphs, float_path.name, quantized_path.name)
    view = output_view(graphs[0])
    pooled: dict[str, Sums] = {}
    results, count, widened = _compare_results(float_path, quantized_path, data, view, progress, pooled)
    models = describe_model(graphs[0], float_path), describe_model(graphs[1], quantized_path)
    graphs = as_quantized(graphs[0], graphs[1], lambda: model_io.load(float_path)), graphs[1]
    for feature in features_of(graphs[1]):
        feature.write_float(graphs[1])
    matches, missing = match_tensors(*graphs)
    inputs = open_model(float_path, data.options).inputs
    both = SideBySide(*graphs, matches, data.options)
    samples = data.samples(inputs)
    layers = both.collect(matches, progress(samples, "layers"))
    chosen = [layer for kind in (False, True) for layer in worst_layers(layers, worst, weights=kind)]
    histograms = _histograms(both, chosen, progress(samples, "histograms"))
    costs = measure_both(float_path, quantized_path, data)
    return ModelComparison(
        models, costs, widened, count, results, layers, missing, chosen, histograms, view, pooled
    )


def worst_layers(layers: Sequence[LayerStatistics], count: int, *, weights: bool) -> list[LayerStatistics]:
    """Return the layers of lowest SQNR among weights or activations; layers without an error are left out."""
    known = [one for one in layers if one.match.is_weight == weights and math.isfinite(one.total.sqnr())]
    known = [one for one in known if one.total.count]
    return sorted(known, key=lambda one: one.total.sqnr())[:count]


def _compare_results(
    float_path: Path,
    quantized_path: Path,
    data: Data,
    view: OutputView,
    progress: Progress,
    pooled: dict[str, Sums],
) -> tuple[list[Comparison], int, int]:
    """Return comparisons of the original models' outputs by sample, the sample count and the widened nodes.

    Sums of each output over the samples are added to ``pooled``.
    """
    first, second = open_model(float_path, data.options), open_model(quantized_path, data.options)
    for kind, names, other_names in (
        ("inputs", [i.name for i in first.inputs], [i.name for i in second.inputs]),
        ("outputs", first.outputs, second.outputs),
    ):
        if set(names) != set(other_names):
            raise ValueError(
                f"the models have different {kind}: {', '.join(names)} against {', '.join(other_names)}"
            )
    types = {names.name: names.dtype for names in second.inputs}
    for fed in first.inputs:
        if fed.dtype != types[fed.name]:
            both = f"{fed.dtype} in the float model, {types[fed.name]} in the other"
            raise ValueError(f"input '{fed.name}' is {both}: run each (tools.infer), then tools.evaluate")
    samples = data.samples(first.inputs)
    results = []
    for name, feed in progress(samples, "results"):
        left, right = first.run(feed), second.run(feed)
        for output in first.outputs:
            are_logits = output in view.logits
            results += _compare_outputs(
                name, output, left[output], right[output], pooled, are_logits=are_logits
            )
    return results, len(samples), second.widened


def _compare_outputs(
    name: str,
    output: str,
    left: object,
    right: object,
    pooled: dict[str, Sums],
    *,
    are_logits: bool = False,
) -> list[Comparison]:
    """Return the comparison of an output of a sample; for a sequence one for each of its tensors.

    If numbers decide how many rows or tensors there are, it has no metrics.
    """
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        if left.shape == right.shape:
            metrics = compare_arrays(name, output, left, right, are_logits=are_logits)
            if metrics.is_finite and not metrics.has_integers:
                if are_logits and left.ndim:
                    left, right = row_centred(left), row_centred(right)
                pooled.setdefault(output, Sums()).add(left, right)
            return [metrics]
        words = f"shape {list(left.shape)} in the float model, {list(right.shape)} in the other"
        return [without_metrics(name, output, left.shape, words)]
    pair = [array if isinstance(array, list) else [] for array in (left, right)]
    if len(pair[0]) != len(pair[1]):
        words = f"{len(pair[0])} tensors in the float model, {len(pair[1])} in the other"
        return [without_metrics(name, output, (), words)]
    both = enumerate(zip(*pair, strict=True))
    return [
        comparison
        for i, (first, second) in both
        for comparison in _compare_outputs(name, f"{output}[{i}]", first, second, pooled)
    ]


def _histograms(
    both: SideBySide, layers: Sequence[LayerStatistics], samples: Iterable
) -> list[GridHistogram]:
    histograms = [GridHistogram(layer.low, layer.high) for layer in layers]
    pairs = [(layer.match, histogram) for layer, histogram in zip(layers, histograms, strict=True)]
    pending = []
    for match, histogram in pairs:
        if arrays := both.stored(match):
            histogram.add(*arrays[:2])
        else:
            pending.append((match, histogram))
    for _, feed in samples:
        originals, inside = both.arrays([match for match, _ in pending], feed)
        for match, histogram in pending:
            if match.is_weight and histogram.original.any():
                continue
            histogram.add(originals[match.original], inside[match.rounded])
    return histograms

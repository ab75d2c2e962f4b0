"""The comparison of two folders of results: its figures, their output, and the limits that they must meet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_narrow.api.samples import report_litter
from onnx_narrow.summaries.result_files import as_csv, as_json, full_name
from onnx_narrow.summaries.result_tables import file_lines, output_lines, summary_lines, top1_lines
from onnx_narrow.summaries.results import greedy_lines, language_lines, missed, step_lines
from transforms.compare import compare_results
from transforms.compare.compare_results import Comparison, ResultPair, Top1
from transforms.compare.language import Greedy, Language, compare_logits, compare_tokens
from transforms.compare.step_errors import step_sqnr
from transforms.files.output_file import GENERATED, write_text
from transforms.files.spelling import spelled
from transforms.pipelines.metric_figure import MetricFigure
from transforms.precision.bench import goal_scored
from transforms.run.array_files import read_array
from transforms.run.events import Events, each_told
from transforms.search.gate import Gate
from transforms.search.target import TargetError
from transforms.search.user_metric import SampleSet

_ONLY = "output"
"""The name of the single output of results without sub-folders."""

_Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Measures:
    """What to measure in addition to the figures of each file.

    ``logits``: the output with the logits of tokens; ``tokens``: the folder of the tokens; ``limits`` by
    the names of keywords; ``gate``: a metric of all outputs of a sample, and its bound, if it has one.
    """

    labels: np.ndarray | None = None
    logits: str | None = None
    tokens: Path | None = None
    peak: float | None = None
    allow_missing: bool = False
    limits: Mapping[str, float] = field(default_factory=dict)
    gate: Gate | None = None


@dataclass(frozen=True)
class ComparedFolders:
    """The measured figures: of each file, over steps of sequences, and those that ``measures`` asks for.

    ``counted``: the files that enter mean and worst values.
    """

    measures: Measures
    pairs: Sequence[ResultPair]
    comparisons: Sequence[Comparison]
    counted: Sequence[Comparison]
    steps: Mapping[str, Mapping[int, float]]
    top1: Top1 | None
    language: Language | None
    greedy: Greedy | None
    metric: MetricFigure | None = None

    def lines(self) -> Iterator[str]:
        """Yield all figures in tables and lines."""
        if self.counted:
            yield from file_lines(self.counted)
            yield from summary_lines(self.counted)
            yield from output_lines(self.comparisons)
        yield from step_lines(self.steps)
        yield from top1_lines(self.top1)
        yield from language_lines(self.language)
        yield from greedy_lines(self.greedy)
        if self.metric:
            yield f"Metric: {self.metric}"

    def content(self) -> dict[str, Any]:
        """Return all figures as values that JSON can represent."""
        figures = as_json(self)
        return figures if self.metric is None else {**figures, "metric": self.metric.content()}

    def write(self, files: Mapping[str, Path]) -> None:
        """Write the figures to the requested files."""
        if "json" in files:
            write_text(files["json"], json.dumps(self.content(), indent=2, allow_nan=False) + "\n")
        if "csv" in files:
            write_text(files["csv"], as_csv(self.comparisons))

    def judge(self) -> None:
        """Raise ValueError for NaN or infinite elements, TargetError for limits that are missed.

        A GateError for the bound of the metric.
        """
        _refuse_non_finite(self.comparisons)
        if lines := [*missed(self.measures.limits, self.language, self.greedy)]:
            raise TargetError("; ".join(lines))
        gate = self.measures.gate
        if gate and self.metric and not gate.is_shown(self.metric.scored):
            raise gate.unmet(f"metric is missed: {self.metric}")


def compare_folders(baseline: Path, quantized: Path, measures: Measures, events: Events) -> ComparedFolders:
    """Compare the results in two folders, file by file. Raises ValueError or OSError if they do not fit."""
    all_pairs = compare_results.pair_files(baseline, quantized, allow_missing=measures.allow_missing)
    generated = [pair for pair in all_pairs if pair.output == GENERATED]
    pairs = [pair for pair in all_pairs if pair.output != GENERATED]
    if "min_greedy" in measures.limits and not generated:
        raise ValueError(f"{spelled('{min_greedy}')}: there are no results in '{GENERATED}'")
    folders = (each for folder in (baseline, quantized) for each in compare_results.result_folders(folder))
    report_litter(events, *folders)
    logits = measures.logits
    compared = compare_results.compare(pairs, measures.peak, logits)
    comparisons = [*each_told(compared, events.phase("comparing", "file"), len(pairs))]
    return ComparedFolders(
        measures,
        pairs,
        comparisons,
        [comparison for comparison in comparisons if logits is None or comparison.output in ("", logits)],
        step_sqnr(pairs),
        None if measures.labels is None else compare_results.top1(pairs, measures.labels),
        None if logits is None else compare_logits(pairs, logits, measures.tokens),
        compare_tokens(generated) if generated else None,
        None if measures.gate is None else _metric_of(pairs, measures.gate),
    )


def _metric_of(pairs: Sequence[ResultPair], gate: Gate) -> MetricFigure:
    """Return the metric of results, files of one name being outputs of one sample.

    Raises ValueError for a function that asks for inputs, or fails.
    """
    by_sample: dict[str, tuple[_Arrays, _Arrays]] = {}
    for pair in pairs:
        outputs_of_sample = by_sample.setdefault(pair.name, ({}, {}))
        for arrays, path in zip(outputs_of_sample, (pair.baseline, pair.quantized), strict=True):
            arrays[pair.output or _ONLY] = read_array(path)
    samples = list(by_sample.values())
    if gate.figures is None:
        return MetricFigure(gate.words, goal_scored(gate, samples), gate.bound)
    expected, outputs = zip(*samples, strict=True)
    scored = gate.scored(SampleSet(outputs, expected, places=range(len(samples))))
    return MetricFigure(gate.words, scored, gate.bound)


def _refuse_non_finite(comparisons: Sequence[Comparison]) -> None:
    bad = [comparison for comparison in comparisons if not comparison.is_finite]
    if bad:
        sides = [
            sum(getattr(comparison, f"{side}_non_finite") for comparison in bad)
            for side in ("baseline", "quantized")
        ]
        raise ValueError(
            f"NaN or infinite elements in {len(bad)} of {len(comparisons)} files, "
            f"first '{full_name(bad[0])}': {sides[0]} in the baseline, {sides[1]} in the quantized results"
        )

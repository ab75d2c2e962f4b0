"""Comparing the outputs of two models."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from onnx_narrow.api.compared_folders import Measures, compare_folders
from onnx_narrow.api.image_keywords import Preprocess
from onnx_narrow.api.samples import SampleOptions, inputs_of, labels_in, open_folder
from onnx_narrow.api.saved_outputs import save_outputs
from onnx_narrow.api.sources import Data, Model, samples_folder, source_of
from onnx_narrow.api.told import Told, Watcher
from onnx_narrow.api.usage import checked, fields_in, files_in
from onnx_narrow.api.work_options import gate_in
from onnx_narrow.options.option import Keywords
from transforms.compare.compare_results import ResultPair
from transforms.files.cleanup import temporary_folder
from transforms.files.paths import AnyPath
from transforms.run.array_files import read_array
from transforms.run.events import Events
from transforms.search.user_metric import UserMetric

Metric: TypeAlias = Callable[[np.ndarray, np.ndarray], float]
"""Called with an output of the float model and the same output of the other."""


_LIMITS = ("max_kl", "max_perplexity", "min_same", "min_greedy")


def evaluate(
    baseline: Model,
    quantized: Model,
    *,
    data: Data | None = None,
    metrics: Mapping[str, Metric] | None = None,
    labels: AnyPath | ArrayLike | None = None,
    logits: str | None = None,
    tokens: AnyPath | None = None,
    max_kl: float | None = None,
    max_perplexity: float | None = None,
    min_same: float | None = None,
    min_greedy: float | None = None,
    json: AnyPath | None = None,
    csv: AnyPath | None = None,
    peak: float | None = None,
    allow_missing: bool = False,
    force: bool = False,
    output_names: Sequence[str] | str = (),
    generate: int = 0,
    limit: int | None = None,
    image_size: int | Sequence[int] | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    layout: str | None = None,
    preprocess: Preprocess | None = None,
    sequences: bool = False,
    states: Mapping[str, str] | None = None,
    feeds_from: Model | None = None,
    feeds: Mapping[str, str] | None = None,
    metric: UserMetric | str | None = None,
    min_metric: float | None = None,
    max_loss: float | None = None,
    provider: str = "cpu",
    threads: int | None = None,
    progress: Watcher | Events | None = None,
) -> dict[str, Any]:
    """Compare the outputs of two models on samples, or two folders of results.

    Parameters
    ----------
    baseline, quantized : path, ModelProto or Graph
        The float model and the other one, which are run; without ``data``, folders of results of
        :func:`onnx_narrow.infer`.
    data : folder, file, array, reader, iterable or callable, optional
        Samples, see :data:`onnx_narrow.api.sources.Data`; those in memory, and all outputs, are written to
        a temporary folder.
    metrics : mapping of str to callable, optional
        Figures of your own: each is called with both arrays of an output of a sample.
    metric, min_metric, max_loss : optional
        A metric of all outputs of samples, and its bound, as of :func:`onnx_narrow.quantize`; without inputs.
    labels : path or array of int, optional
        Class numbers of all rows: tells accuracy and agreement.
    logits : str, optional
        The output that holds logits of tokens: tells KL divergence and how often the first choice is the
        same; mean and worst values are of it alone, without the mean of each row.
    tokens : path, optional
        The samples with ``input_ids``, a folder or a .npy file: tells perplexity.
    peak : float, optional
        The signal peak for psnr and ssim.
    allow_missing : bool
        Whether files that only one of two folders of results has are left out.
    max_kl, max_perplexity, min_same, min_greedy : float, optional
        Limits of KL divergence in nats, of perplexity, and of shares (0 to 1) of the same first choice, and
        of the same tokens that both models wrote.
    json, csv : path, optional
        Files to write: all figures, and a line for each file.
    force : bool
        Whether existing files of these names are replaced.
    output_names, generate : list of str, and int
        Compare only these outputs, and so many tokens that a language model continues each sample by.
    limit, image_size, mean, std, layout, preprocess, sequences, states, feeds_from, feeds : optional
        How samples are read, as in :func:`onnx_narrow.quantize`.
    provider, threads : str and int
        Execution provider of ONNX Runtime, and threads; all cores by default.
    progress : callable, optional
        Called with the phase, how many pieces are done, and of how many.

    Returns
    -------
    dict
        What ``onnx-narrow evaluate --json`` writes: ``mean``, ``worst``, ``outputs``, ``top1``, ``language``,
        ``greedy``, ``per_file``, ``steps``, ``metric``; and in ``metrics`` the mean of each of yours by its
        name.

    Raises
    ------
    TypeError, ValueError, OSError
        As :func:`onnx_narrow.quantize`; a ValueError also for NaN or infinite outputs, and for a limit that
        is missed, after all is written.

    Examples
    --------
    >>> import numpy, onnx_narrow
    >>> samples = [numpy.full((2, 1, 8, 8), i / 8, "float32") for i in range(8)]
    >>> model = "tests/examples/digits.onnx"
    >>> onnx_narrow.evaluate(model, model, data=samples, labels=[0] * 16)["top1"]["agreement"]
    1.0
    """
    keywords = checked("evaluate", locals())
    for name, function in (metrics or {}).items():
        if not callable(function):
            raise TypeError(f"metrics: {name!r} is {function!r}, not a callable")
    files = files_in(keywords, "json", "csv", inputs=(keywords.get("labels"),))
    measures = _measures(keywords)
    with Told(progress) as told, temporary_folder() as folder:
        if data is None:
            results = _results("baseline", baseline), _results("quantized", quantized)
        else:
            results = _run_both(baseline, quantized, keywords, folder, told)
        compared = compare_folders(*results, measures, told)
        told.tell(compared.lines())
        compared.write(files)
        compared.judge()
        caller_metrics = {} if metrics is None else {"metrics": _of_users(metrics, compared.pairs)}
    return {**compared.content(), **caller_metrics}


def _measures(keywords: Keywords) -> Measures:
    converted: dict[str, Any] = {
        "labels": labels_in(keywords),
        "limits": {name: keywords[name] for name in _LIMITS if name in keywords},
        "gate": gate_in(keywords),
    }
    return Measures(**{**fields_in(Measures, keywords), **converted})


def _results(name: str, folder: Model) -> Path:
    """Return a folder of results; TypeError for a model that has to be run first."""
    if not isinstance(folder, str | os.PathLike):
        kind = type(folder).__name__
        raise TypeError(f"{name}: without data, results are compared: a folder, not a {kind}")
    return Path(folder)


def _run_both(
    baseline: Model, quantized: Model, keywords: Keywords, folder: Path, events: Events
) -> tuple[Path, Path]:
    """Run both models on the same samples, and return the folders of their results."""
    sources = source_of(baseline), source_of(quantized)
    options = SampleOptions.of(keywords)
    sample_folder, results = folder / "samples", (folder / "baseline", folder / "quantized")
    sample_folder.mkdir()
    assert options.data is not None, "asked for before"
    data = samples_folder(options.data, partial(inputs_of, sources[0]), sample_folder, options.limit, events)
    options = replace(options, data=data)  # a callable or an iterator may yield the samples only once
    for source, output in zip(sources, results, strict=True):
        tells = source is sources[0]
        with open_folder(options, source, events, unrolls=False, tells=tells) as samples:
            save_outputs(source, samples, output, options, events)
    return results


def _of_users(metrics: Mapping[str, Metric], pairs: Sequence[ResultPair]) -> dict[str, float]:
    values: dict[str, list[float]] = {name: [] for name in metrics}
    for pair in pairs:
        arrays = read_array(pair.baseline), read_array(pair.quantized)
        for name, metric in metrics.items():
            values[name].append(float(metric(*arrays)))
    return {name: fmean(figures) if figures else math.nan for name, figures in values.items()}

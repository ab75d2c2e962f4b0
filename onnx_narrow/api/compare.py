"""Looking at models: outputs beside those of the float model, layers, targets, what a file holds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onnx_narrow.api.bars import Watcher
from onnx_narrow.api.call import call
from onnx_narrow.api.sources import Data, Model, model_file, samples_folder, two_models
from onnx_narrow.api.workplace import workplace
from onnx_narrow.summaries import inspection
from tools import check as check_tool
from tools import evaluate as evaluate_tool
from tools import infer as infer_tool
from tools import report as report_tool
from transforms.compare.compare_results import pair_files
from transforms.compare.inspect_model import inspect_model
from transforms.files.paths import AnyPath
from transforms.origins.loss_table import rows
from transforms.run.array_files import read_array

Metric = Callable[[np.ndarray, np.ndarray], float]
"""Called with an output of the float model and the same output of the other."""

_LIMITS = ("max_kl", "max_perplexity", "min_same", "min_greedy")
_OF_COMPARING = ("labels", "logits", "tokens", "peak", "allow_missing", *_LIMITS)
"""Options of the comparison; the others are of running the models."""


def evaluate(
    baseline: Model,
    quantized: Model,
    *,
    data: Data | None = None,
    metrics: Mapping[str, Metric] | None = None,
    progress: Watcher | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Compare the outputs of two models on samples, or two folders of results.

    Parameters
    ----------
    baseline, quantized : path, ModelProto or Graph
        The float model and the other one; folders of results without ``data``.
    data : folder, reader, iterable or callable, optional
        Samples, see :data:`onnx_narrow.api.sources.Data`.
    metrics : mapping of str to callable, optional
        Figures of your own: each is called with both arrays of an output of a sample.
    progress : callable, optional
        Called with the phase, how many pieces are done, and of how many.
    **options
        Options of ``onnx-narrow infer`` and ``onnx-narrow evaluate``, such as ``labels="labels.npy"``.

    Returns
    -------
    dict
        What ``onnx-narrow evaluate --json`` writes: ``mean``, ``worst``, ``outputs``, ``top1``, ``language``,
        ``greedy``, ``per_file``, ``steps``; and in ``metrics`` the mean of each of yours by its name.

    Raises
    ------
    ValueError, OSError
        As :func:`onnx_narrow.quantize`; also for NaN or infinite outputs.
    """
    running = {name: value for name, value in options.items() if name not in _OF_COMPARING}
    comparing = {name: value for name, value in options.items() if name in _OF_COMPARING}
    with workplace() as folder:
        if data is None:
            results = [_results(baseline), _results(quantized)]
        else:
            models = [model_file(one, folder, f"{i}.onnx") for i, one in enumerate((baseline, quantized))]
            samples = samples_folder(data, models[0], folder / "samples", options.get("limit"))
            results = [folder / "baseline", folder / "quantized"]
            for model, output in zip(models, results, strict=True):
                given = {"input": model, "data": samples, "output": output, **running}
                call(infer_tool.command(), infer_tool.infer, given, progress)
        given = dict(zip(("baseline_results_folder", "quantized_results_folder"), results, strict=True))
        found, _ = call(
            evaluate_tool.command(), evaluate_tool.compare_folders, {**given, **comparing}, progress
        )
        if metrics:
            found["metrics"] = _of_users(metrics, *results)
        return found


def _results(folder: Model) -> Path:
    """Return a folder of results; TypeError for a model that has to be run first."""
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"without data, results are compared: a folder, not a {type(folder).__name__}")
    return Path(folder)


def _of_users(metrics: Mapping[str, Metric], baseline: Path, quantized: Path) -> dict[str, float]:
    arrays = [
        (read_array(pair.baseline), read_array(pair.quantized)) for pair in pair_files(baseline, quantized)
    ]
    return {name: float(np.mean([metric(*pair) for pair in arrays])) for name, metric in metrics.items()}


def report(
    float_model: Model,
    quantized: Model,
    output: AnyPath,
    *,
    data: Data,
    force: bool = False,
    progress: Watcher | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Write a page on where a quantized model differs from its float model, and return its rows.

    Parameters
    ----------
    float_model, quantized : path, ModelProto or Graph
        The models.
    output : path
        The HTML page to write.
    data : folder, reader, iterable or callable
        Samples, see :data:`onnx_narrow.api.sources.Data`.
    force : bool
        Whether an existing page is overwritten.
    progress : callable, optional
        Called with the phase, how many pieces are done, and of how many.
    **options
        Options of ``onnx-narrow report``, such as ``limit=10``.

    Returns
    -------
    list of dict
        For each layer what it loses by itself, what it inherits and its share, see
        :func:`transforms.origins.loss_table.rows`; empty where that cannot be told, as the page says.

    Raises
    ------
    ValueError, OSError
        As :func:`onnx_narrow.quantize`.
    """
    with workplace() as folder:
        pair = two_models(float_model, quantized, data, folder, options)
        given = {"output": output, "force": force, **pair}
        (_, origins), _ = call(report_tool.command(), report_tool.write_report, given, progress)
        return rows(origins) if origins else []


def check(model: Model, target: str) -> list[str]:
    """Return each rule of a deployment target that a model breaks, in words; empty if it fits.

    Raises ValueError for an unknown target, ModelError or OSError.

    Examples
    --------
    >>> import onnx_narrow
    >>> onnx_narrow.check("tests/examples/digits.onnx", "ort-cpu")
    ['nothing is quantized: it computes in low precision after uint8 or int8']
    """
    with workplace() as folder:
        given = {"input": model_file(model, folder), "target": target}
        broken, _ = call(check_tool.command(), check_tool.broken_rules, given)
        return broken


def inspect(model: Model) -> dict[str, Any]:
    """Return what a model is, how it is stored and what it needs: ``onnx-narrow inspect --json``.

    Raises ModelError (a ValueError) or OSError.

    Examples
    --------
    >>> import onnx_narrow
    >>> onnx_narrow.inspect("tests/examples/digits.onnx")["ir_version"]
    8
    """
    with workplace() as folder:
        found: dict[str, Any] = json.loads(
            json.dumps(inspection.as_json(inspect_model(model_file(model, folder))))
        )
        return found

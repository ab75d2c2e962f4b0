"""The real models and their data beside the project, for the tests that use them where they are there."""

from __future__ import annotations

import importlib.util
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

import ops

SHARED = Path(__file__).resolve().parents[3] / "shared"
MODELS = SHARED / "models"
NAMES = sorted(path.parent.name for path in MODELS.glob("*/model.onnx"))

FEW = ("mnist_cntk", "resnet8_cifar10", "resnet8_cifar10_fp16")
"""Small ones: a plain graph, a residual one, float16."""

EACH = [name if name in FEW else pytest.param(name, marks=pytest.mark.heavy) for name in NAMES]
"""All, for the parameters of a test; those beside the few are heavy."""

Outputs = dict[str, NDArray]


def score_module() -> ModuleType:
    """Return the scorer that knows each model's data and metric."""
    if "score" not in sys.modules:
        spec = importlib.util.spec_from_file_location("score", SHARED / "checks" / "score.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["score"] = module
        spec.loader.exec_module(module)
    return sys.modules["score"]


@lru_cache(maxsize=1)
def task(name: str) -> SimpleNamespace:
    """Return feeds, states and metric of a model's evaluation data; those of the last model are kept."""
    score = score_module()
    found: SimpleNamespace = score.TASKS[name](score.Data(str(MODELS)))
    return found


def session(model: Path | bytes, *, optimized: bool = False) -> onnxruntime.InferenceSession:
    """Return a CPU session with our operators; literal, without graph optimization, unless told otherwise."""
    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    ops.register_custom_ops(options)
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def first_outputs(model: Path | bytes, name: str) -> Outputs:
    """Return the outputs of a model, not optimized, on the first sample of a task."""
    data = task(name)
    feed = {**data.feeds[0], **(data.init or {})}
    score = score_module()
    outputs: Outputs = score.run_feed(score.Runner(session(model)), feed)
    return outputs


def all_outputs(model: Path, name: str) -> Outputs:
    """Return the outputs of a model on all data of a task, as a stream where the model has a state."""
    score = score_module()
    outputs: Outputs = score.run(score.Runner(session(model, optimized=True)), task(name))[0]
    return outputs


def snr_db(name: str, baseline: Outputs, outputs: Outputs) -> float:
    """Return the mean over a task's outputs of 10 log10(signal / noise), in dB."""
    data = task(name)
    keys = [key for key in baseline if key not in data.ignore]
    if data.primary is not None:
        keys = [list(baseline)[data.primary]]
    result: float | None = score_module().overall(baseline, outputs, keys)
    return float("nan") if result is None else result


def metrics(name: str, baseline: Outputs, outputs: Outputs) -> dict[str, float]:
    """Return the task's own metrics, of the float model under names that end in ``_float``."""
    with np.errstate(all="ignore"):
        found: dict[str, float] = task(name).metric(baseline, outputs)
    return found

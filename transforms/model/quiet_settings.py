"""Session options of ONNX Runtime without log output."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime as ort

SILENT = 4
"""The severity from which messages are logged: fatal. Failures are also raised."""


def quiet_settings() -> ort.SessionOptions:
    """Return session options without warnings, which the runtime prints even for models that run well."""
    settings = ort.SessionOptions()
    settings.log_severity_level = SILENT
    return settings


def compute(model: onnx.ModelProto, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return outputs of a small model without inputs, by name; raises whatever the runtime raises."""
    settings = quiet_settings()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), settings, ["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, {}), strict=True))

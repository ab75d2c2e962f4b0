"""Sessions of ONNX Runtime that write nothing to the log."""

from __future__ import annotations

import onnxruntime as ort

SILENT = 4
"""The severity from which messages are logged: fatal ones. What fails is raised as well."""


def quiet_settings() -> ort.SessionOptions:
    """Return settings of a session that logs no warnings; the runtime has them for models that run well."""
    settings = ort.SessionOptions()
    settings.log_severity_level = SILENT
    return settings

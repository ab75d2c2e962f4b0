"""The option that names the runtime a model is made for."""

from __future__ import annotations

from typing import Any

from tools.cli.options import option

TARGETS = (
    *("ort-cpu", "ort-cuda", "tensorrt", "openvino", "qnn"),
    *("ryzen-ai-cnn", "ryzen-ai-bf16", "ryzen-ai-float-scale"),
)
"""Names of the table of deployment targets, repeated here so that help needs no imports."""


def deployment() -> Any:
    """Return the field ``target`` of a tool, empty without one."""
    words = "runtime to make the model for, which sets defaults and checks the result: "
    return option("--target NAME", words + ", ".join(TARGETS), choices=TARGETS, default="")

"""Options of ``check`` alone."""

from __future__ import annotations

from dataclasses import replace

from onnx_narrow.options.kinds import REQUIRED, TEXT, unchecked
from onnx_narrow.options.option import USUAL, Option
from onnx_narrow.options.shared import TARGETS

_JOB = "check"

ROWS: tuple[Option, ...] = (
    Option("model", unchecked("Model", REQUIRED), _JOB, "--input MODEL", USUAL, (), "the model to check"),
    Option("target", replace(TEXT, choices=TARGETS, default=REQUIRED), _JOB, "--target NAME", USUAL, (),
           f"the runtime that it is for: {', '.join(TARGETS)}"),
)  # fmt: skip
"""Rows in the order of ``--help``."""

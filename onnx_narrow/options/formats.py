"""Options of the command ``formats``."""

from __future__ import annotations

from onnx_narrow.options.kinds import FLAG, PATH
from onnx_narrow.options.option import USUAL, Need, Option

_JOB = "--formats"

ROWS: tuple[Option, ...] = (
    Option("model", PATH, _JOB, "--input --model M.onnx", USUAL, (),
           "measure on the weights of this model instead"),
    Option("plot", PATH, _JOB, "--plot FILE", USUAL, (),
           "also draw the fidelity of each format: .png or .svg"),
    Option("force", FLAG, _JOB, "", USUAL, (Need("{plot}"),), "overwrite an existing plot"),
)  # fmt: skip
"""Rows in the order of ``--help``."""

"""Options of ``inspect`` alone."""

from __future__ import annotations

from onnx_narrow.options.kinds import FLAG, MODEL, REQUIRED, unchecked
from onnx_narrow.options.option import USUAL, Option

_JOB = "inspect"

ROWS: tuple[Option, ...] = (
    Option("model", unchecked("Model", REQUIRED), _JOB, "--input MODEL", USUAL, (), "the model to look at",
           read="path"),
    Option("against", MODEL, _JOB, "--against MODEL", USUAL, (), "another model: say how it differs",
           read="path"),
    Option("layers", FLAG, _JOB, "", USUAL, (), "list the nodes: names, operators, inputs and outputs"),
    Option("tensors", FLAG, _JOB, "", USUAL, (), "list the tensors: names, types, shapes"),
    Option("grids", FLAG, _JOB, "", USUAL, (),
           "list the weights that lie on a grid already, and share of the others"),
    Option("json", FLAG, "--inspect", "", USUAL, (), "print JSON, for programs to read"),
)  # fmt: skip
"""Rows in the order of ``--help``."""

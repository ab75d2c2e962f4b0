"""Options of ``report`` alone."""

from __future__ import annotations

from onnx_narrow.options.kinds import DATA, FLAG, PATH, REQUIRED, number, unchecked
from onnx_narrow.options.option import USUAL, Option
from onnx_narrow.options.shared import FILES

_JOB = "report"

ROWS: tuple[Option, ...] = (
    Option("float_model", unchecked("Model", REQUIRED), _JOB, "--float MODEL", USUAL, (), "the float model",
           read="path"),
    Option("quantized", unchecked("Model", REQUIRED), _JOB, "--quantized MODEL", USUAL, (),
           "the model quantized from it", read="path"),
    Option("output", PATH.by_default(REQUIRED), _JOB, "--output FILE", USUAL, (), "the HTML page to write"),
    Option("data", DATA.by_default(REQUIRED), _JOB, "--data PATH", USUAL, (), f"samples{FILES}", read="path"),
    Option("json", PATH, _JOB, "--json FILE", USUAL, (),
           "write the error that each layer adds, inherits and has in all, as JSON"),
    Option("csv", PATH, _JOB, "--csv FILE", USUAL, (), "write the table of layers as CSV"),
    Option("min_sqnr", number(), _JOB, "--min-sqnr DB", USUAL, (),
           "rate results as good, borderline or bad by this SQNR"),
    Option("force", FLAG, _JOB, "", USUAL, (), "overwrite the outputs"),
)  # fmt: skip
"""Rows by group, in the order of ``--help``."""

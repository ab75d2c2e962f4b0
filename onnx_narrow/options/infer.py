"""Options of ``infer`` alone."""

from __future__ import annotations

from onnx_narrow.options.kinds import DATA, FLAG, MODEL, PATH, REQUIRED, TEXTS, unchecked, whole
from onnx_narrow.options.option import USUAL, Option
from onnx_narrow.options.shared import FILES
from transforms.files.output_file import GENERATED

_JOB = "infer"

ROWS: tuple[Option, ...] = (
    Option("model", unchecked("Model", REQUIRED), _JOB, "--input --model M.onnx", USUAL, (), "model to run",
           read="path"),
    Option("output", PATH.by_default(REQUIRED), _JOB, "--output --output_dir DIR", USUAL, (),
           "folder to save results in"),
    Option("data", DATA.by_default(REQUIRED), _JOB, "--data PATH", USUAL, (), f"samples{FILES}", read="path"),
    Option("time", MODEL, _JOB, "--time FLOAT.onnx", USUAL, (),
           "compare time and memory with this model on the same samples", read="path"),
    Option("output_names", TEXTS, _JOB, "--output-names NAME", USUAL, (),
           "save only these outputs; repeatable", takes="extend"),
    Option("generate", whole(0).by_default(0), _JOB, "--generate N", USUAL, (),
           f"save N tokens that a language model generates after each sample, in {GENERATED}; outputs only "
           "by {output_names}"),
    Option("force", FLAG, _JOB, "", USUAL, (), "write into an output folder that is not empty"),
)  # fmt: skip
"""Rows by group, in the order of ``--help``."""

"""Options of ``convert_bf16`` alone."""

from __future__ import annotations

from onnx_narrow.options.kinds import DATA, FLAG, ON, PATH, TEXTS, choice, number, unchecked
from onnx_narrow.options.option import OTHER, USUAL, Need, Option
from onnx_narrow.options.shared import DATA as OF_DATA
from onnx_narrow.options.shared import FILES

_JOB, _CONVERSION = "convert_bf16", "conversion"
_CUSTOM = (Need("{format:customqdq}"),)
_ROUNDED = (
    Need("{format:with_cast}, bf16 or customqdq", lambda given: given.get("format") != "simulate_bf16"),
)

ROWS: tuple[Option, ...] = (
    Option("model", unchecked("Model"), _JOB, "--input MODEL", USUAL, (),
           "the float model, or a folder of them; never changed", required=True),
    Option("output", PATH, _JOB, "--output MODEL", USUAL, (), "the BF16 model to write", required=True),
    Option("data", DATA, _JOB, "--data PATH", USUAL, (Need("{min_sqnr} or {metric}"),),
           f"samples for {{min_sqnr}} or {{metric}}{FILES}", read="path"),
    Option("min_sqnr", number(), _JOB, "--min-sqnr DB", USUAL, OF_DATA,
           "least SQNR of every output on held-out samples of {data}: keeps as few layers as possible in "
           "float"),
    Option("format", choice("with_cast", "bf16", "simulate_bf16", "customqdq"), _JOB, "", USUAL, (),
           "how BF16 is written, see below"),
    Option("exclude_node", TEXTS, _JOB, "--exclude-node GLOB", USUAL, (),
           "keep nodes whose name matches in float; repeatable"),
    Option("exclude_op", TEXTS, _JOB, "--exclude-op OP", USUAL, (),
           "keep nodes of an operator type in float; repeatable"),
    Option("weights", choice("bfloat16", "float32"), _JOB, "", _CONVERSION, _ROUNDED,
           "how weights are stored: rounded, in half the bytes (default), or in float32, rounded at load"),
    Option("domain", choice("ai.onnx.contrib", "com.amd.quark"), _JOB, "", _CONVERSION, _CUSTOM,
           "domain of the operators of customqdq (default: ai.onnx.contrib)"),
    Option("keep_io_types", ON, _JOB, "", _CONVERSION, (),
           "whether inputs and outputs keep their type (default) or become bfloat16", takes="both"),
    Option("saturate_activations", FLAG, _JOB, "", _CONVERSION, _ROUNDED,
           "clip activations to the BF16 range before rounding"),
    Option("strict", FLAG, _JOB, "", _CONVERSION, (), "refuse a model with NaN in its weights"),
    Option("optimize", ON, _JOB, "--no-optimize", _CONVERSION, (), "skip graph optimization and fusion"),
    Option("float_type", choice("float32", "float16"), "convert_bf16()", "", OTHER, (),
           "refuse a model of the other type"),
    Option("steps", unchecked("Steps"), "convert_bf16()", "", OTHER, (),
           "the recipe, instead of transforms.pipelines.bf16.BF16"),
)  # fmt: skip
"""Rows by group, in the order of ``--help``."""

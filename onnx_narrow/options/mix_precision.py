"""Options of ``mix_precision`` alone, the command ``auto_mixed_precision``."""

from __future__ import annotations

from onnx_narrow.options.kinds import (
    DATA,
    FLAG,
    LABELS,
    LARGEST,
    MOST_AT_ONCE,
    PATH,
    TEXTS,
    number,
    unchecked,
    whole,
)
from onnx_narrow.options.option import OTHER, RUNNING, SEARCH, USUAL, Option
from onnx_narrow.options.shared import A_MODEL, FILES, TARGETS
from onnx_narrow.options.shared import DATA as OF_DATA

_JOB, _LAYERS, _TARGETS, _RESULTS = "mix_precision", "formats and layers", "targets", "results"
_MADE = (A_MODEL,)

_KEYS: tuple[Option, ...] = (
    Option("target", TEXTS, _JOB, "--target FORMAT|NAME", USUAL, (),
           "format that layers may get, such as bfp16 or int8/int4 (activation/weight); or the runtime to "
           f"make the model for: {', '.join(TARGETS)}; repeatable"),
    Option("activation_target", unchecked("str"), _JOB, "--activation-target FORMAT", _LAYERS, (),
           "the same, for the activation only"),
    Option("weight_target", unchecked("str"), _JOB, "--weight-target FORMAT", _LAYERS, (),
           "the same, for the weight only"),
    Option("target_op_types", TEXTS, _JOB, "--target-op-type OP", _LAYERS, (),
           "only layers of these operators", takes="+"),
    Option("exclude_nodes", TEXTS, _JOB, "--exclude-node GLOB", USUAL, (),
           "layers to exclude by name; repeatable"),
    Option("l2_target", number(0), _JOB, "--l2-target X", _TARGETS, (),
           "largest L2 norm of the outputs' error, mean over samples"),
    Option("sqnr_target", number(), _JOB, "--sqnr-target X", USUAL, (), "least SQNR of the outputs, in dB"),
    Option("sqnr_drop_target", number(0), _JOB, "--sqnr-drop-target X", USUAL, (),
           "largest drop of SQNR below the baseline, in dB"),
    Option("top1_target", number(0, 1), _JOB, "--top1-target X", USUAL, (),
           "largest drop of top-1 accuracy, as a share of rows, such as 0.01"),
    Option("kl_target", number(0), _JOB, "--kl-target X", USUAL, (),
           "largest KL divergence after Softmax in nats, mean over rows (tokens)"),
    Option("evaluate_target", number(0), _JOB, "--evaluate-target X", _TARGETS, (),
           "largest loss of the function of {evaluate} against the float model"),
    Option("bits_target", number(0), _JOB, "--bits-target X", USUAL, _MADE,
           "mean bits per weight, at most"),
    Option("size_target", whole(most=LARGEST), _JOB, "--size BYTES", _TARGETS, _MADE,
           "size of the file that is written, such as 190MB or 180MiB, at most", read="file_size"),
    Option("evaluate", unchecked("UserMetric | str"), _JOB, "--evaluate FILE.py:FUNCTION", _TARGETS, (),
           "function of the outputs of all samples; higher is better"),
    Option("output_index", whole(-1), _JOB, "--output-index N", SEARCH, OF_DATA,
           "index of the output to measure, from 0 (default: -1, all)"),
    Option("dual_quant_nodes", unchecked("bool"), _JOB, "", SEARCH, (),
           "quantize tensors between layers of two formats in both formats"),
)  # fmt: skip
TABLE_KEYS = tuple(row.name for row in _KEYS)
"""Options that are keys of the table of mixed precision."""

ROWS: tuple[Option, ...] = (
    Option("model", unchecked("Model"), _JOB, "--input MODEL", USUAL, (), "the float model; never changed",
           required=True),
    Option("output", PATH, _JOB, "--output MODEL", USUAL, (), "the quantized model to write"),
    Option("data", DATA, _JOB, "--data PATH", USUAL, (), f"samples to measure ranges and errors on{FILES}",
           read="path"),
    *_KEYS,
    Option("labels", LABELS, _JOB, "--labels FILE.npy", USUAL, (A_MODEL, *OF_DATA),
           "class numbers of all rows, for {top1_target}"),
    Option("analyze_only", FLAG, _JOB, "", USUAL, OF_DATA,
           "measure sensitivities, write no model"),
    Option("json", PATH, _JOB, "--json FILE", _RESULTS, OF_DATA, "write sensitivities as JSON"),
    Option("csv", PATH, _JOB, "--csv FILE", _RESULTS, OF_DATA, "write the same as CSV"),
    Option("chart", PATH, _JOB, "--chart FILE", _RESULTS, OF_DATA,
           "draw sensitivities as bars, .png or .svg"),
    Option("plot", PATH, _JOB, "--plot FILE", _RESULTS, (A_MODEL, *OF_DATA),
           "draw bits against error, .png or .svg"),
    Option("jobs", whole(1, MOST_AT_ONCE), _JOB, "--jobs N", RUNNING, OF_DATA,
           "processes that measure layers (default: 1)"),
    Option("resume", PATH, _JOB, "--resume DIR", RUNNING, OF_DATA,
           "store sensitivities in this folder, and fitted layers until the model is written, and resume "
           "from those of the same model, data and options"),
    Option("steps", unchecked("Steps"), "mix_precision()", "", OTHER, (),
           "the recipe, instead of transforms.pipelines.mix.MIX"),
)  # fmt: skip
"""Rows by group, in the order of ``--help``."""

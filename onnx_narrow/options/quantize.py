"""Options of ``quantize`` alone."""

from __future__ import annotations

from onnx_narrow.options.kinds import DATA, FLAG, ON, PATH, TEXTS, Kind, choice, number, unchecked, whole
from onnx_narrow.options.option import OTHER, RUNNING, SAMPLES, SEARCH, USUAL, Need, Option
from onnx_narrow.options.shared import DATA as OF_DATA
from onnx_narrow.options.shared import FILES, JUDGED

_JOB, _SCHEME = "quantize", "scheme"
_GOAL = (Need("{min_sqnr}, {top1} or {metric}"),)
_NBITS = (Need("{matmul_nbits} or {embeddings}"),)


def _key(annotation: str, *choices: str) -> Kind:
    """Return the kind of a key of the scheme, which checks it."""
    return Kind("", annotation, choices=choices)


_KEYS: tuple[Option, ...] = (
    Option("calibrate_method", _key("str", "auto", "MinMax", "Entropy", "Percentile", "MSE"), _JOB, "",
           _SCHEME, (),
           "how ranges of activations are found (default: as in the config); auto: as the outputs decide"),
    Option("per_channel", _key("bool"), _JOB, "", USUAL, (),
           "scale weights per output channel (default: as in the config)", takes="both"),
    Option("exclude_nodes", TEXTS, _JOB, "--exclude-node GLOB", USUAL, (),
           "keep nodes in float by name; repeatable"),
    Option("exclude_op_types", TEXTS, _JOB, "--exclude-op OP", USUAL, (),
           "keep an operator type in float; repeatable"),
    Option("keep_weight_nodes", _key("bool"), _JOB, "", _SCHEME, (),
           "store float weights with nodes that round them in every run, for backends that require it"),
    Option("optimize", _key("bool"), _JOB, "--no-optimize", _SCHEME, (),
           "skip graph optimization and fusion"),
    Option("domain", _key("str", "ai.onnx.contrib", "com.amd.quark"), _JOB, "", _SCHEME, (),
           "domain of our operators (default: ai.onnx.contrib)"),
    Option("qdq_domain", _key("str", "", "com.microsoft"), _JOB, "", _SCHEME, (),
           "domain of QuantizeLinear and DequantizeLinear: ONNX's own (default), or one for old opsets"),
)  # fmt: skip
SCHEME_KEYS = tuple(row.name for row in _KEYS)
"""Options that are keys of a scheme."""

ROWS: tuple[Option, ...] = (
    Option("model", unchecked("Model"), _JOB, "--input MODEL", USUAL, (),
           "the float model, or a folder of them; never changed", required=False),
    Option("output", PATH, _JOB, "--output MODEL", USUAL, (), "the quantized model to write"),
    Option("data", DATA, _JOB, "--data --calibration-data PATH", USUAL, (),
           f"samples to measure ranges on{FILES}", read="path"),
    *_KEYS,
    Option("fast", FLAG, _JOB, "", USUAL, (),
           "do not compare outputs: settings that are 'auto' follow fixed rules"),
    Option("effort", choice("low", "normal", "high"), _JOB, "", SEARCH, (JUDGED,),
           "how many runs of the model the search of settings may take (default: normal)"),
    Option("min_sqnr", number(), _JOB, "--min-sqnr DB", USUAL, (JUDGED,),
           "least SQNR of every output on held-out samples: keeps as few layers as possible in float for it"),
    Option("top1", number(0, 1), _JOB, "--top1 X", SEARCH, (JUDGED,),
           "largest share of rows whose first choice may change, such as 0.01: does the same"),
    Option("fallback", choice("float32", "int16", "bf16"), _JOB, "", SEARCH, _GOAL,
           "format of layers that are kept finer for it (default: float32)"),
    Option("allow_miss", FLAG, _JOB, "", SEARCH, _GOAL,
           "write the best model found even if it misses the target; its metadata have the figure"),
    Option("allow_large", FLAG, _JOB, "", SEARCH, _GOAL,
           "write a model with more than 0.9 of the bytes of the float model, if a target takes that"),
    Option("random_data", whole(), _JOB, "--random-data N", SAMPLES, (),
           "measure ranges on N random samples: for experiments, the result is not accurate"),
    Option("matmul_nbits", FLAG, _JOB, "", _SCHEME, (),
           "write products with integer weights in blocks as MatMulNBits of ONNX Runtime"),
    Option("accuracy_level", choice(1, 4), _JOB, "", OTHER, _NBITS,
           "of MatMulNBits: 1 keeps its inputs in float32, 4 lets kernels round them to int8, faster "
           "(default; with 4 bits where it costs less than .02 nats)"),
    Option("embeddings", choice("int8", "int4", "float"), _JOB, "", OTHER, (),
           "store embeddings, and output layers tied to them, in 8 or 4 bits, as operators of ONNX Runtime, "
           "or keep them in float"),
    Option("kv_cache", choice("int8", "int4"), _JOB, "", OTHER, OF_DATA,
           "store caches of keys and values in 8 or 4 bits, as inputs and outputs, with scales from the "
           "samples"),
    Option("ranges", PATH, _JOB, "--ranges FILE", _SCHEME, (),
           "take scales and zero points of tensors from this file, see below"),
    Option("export_ranges", PATH, _JOB, "--export-ranges FILE", _SCHEME, (),
           "write scales, zero points and ranges of all tensors to FILE.json, or to FILE.encodings"),
    Option("time", ON, _JOB, "--no-time", RUNNING, (),
           "do not time the model beside the float model, nor its layers for {target:ort-cpu}"),
    Option("print_config", FLAG, "--quantize", "", USUAL, (),
           "print the full scheme in use as TOML; without {model}, only that"),
    Option("steps", unchecked("Steps"), "quantize()", "", OTHER, (),
           "the recipe, instead of onnx_narrow.QUANTIZE: its rows, and functions of a Work"),
    Option("moves", unchecked("Sequence[Move]"), "quantize()", "", OTHER, (),
           "what the step decide tries, each a function of a Best, instead of MOVES"),
)  # fmt: skip
"""Rows by group, in the order of ``--help``."""

"""Options of ``finetune`` alone."""

from __future__ import annotations

from dataclasses import replace

from onnx_narrow.options.kinds import (
    DATA,
    FLAG,
    LARGEST,
    PATH,
    REQUIRED,
    TEXTS,
    choice,
    number,
    unchecked,
    whole,
)
from onnx_narrow.options.option import OTHER, RUNNING, USUAL, Need, Option
from onnx_narrow.options.shared import DATA as OF_DATA
from onnx_narrow.options.shared import FILES

_JOB, _ALGORITHM, _LAYERS = "finetune", "algorithm", "layers"
_ALGORITHMS = ("auto", "gptq", "coordinate_descent", "adaquant", "adaround")
_OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_DEVICES = ("cpu", "cuda:0", "hip:0")
_STEPPED = (
    Need(
        "{algorithm:adaquant} or adaround", lambda given: given.get("algorithm") in ("adaquant", "adaround")
    ),
)
_AUTO = (Need("{algorithm:auto}", lambda given: "algorithm" not in given),)

ROWS: tuple[Option, ...] = (
    Option("float_model", unchecked("Model", REQUIRED), _JOB, "--float MODEL", USUAL, (),
           "the float model; never changed"),
    Option("quantized", unchecked("Model", REQUIRED), _JOB, "--quantized MODEL", USUAL, (),
           "the quantized model; never changed"),
    Option("output", PATH, _JOB, "--output MODEL", USUAL, (), "the tuned model to write", required=True),
    Option("data", DATA.by_default(REQUIRED), _JOB, "--data PATH", USUAL, (), f"samples to tune on{FILES}",
           read="path"),
    Option("algorithm", choice(*_ALGORITHMS).by_default("auto"), _JOB, "", USUAL, (),
           "how weights are found, see below (default: auto)"),
    Option("num_iterations", whole(), _JOB, "--num-iterations N", _ALGORITHM, _STEPPED,
           "steps per layer (default: 1000)"),
    Option("learning_rate", number(0, above=True), _JOB, "--learning-rate X", _ALGORITHM, _STEPPED,
           "in steps of the grid (default: the algorithm's)"),
    Option("early_stop", FLAG, _JOB, "", _ALGORITHM, _STEPPED, "stop a layer when steps no longer help"),
    Option("fixed_seed", whole(0, LARGEST).by_default(0), _JOB, "--fixed-seed N", _ALGORITHM, (),
           "seed for the choice of sample rows"),
    Option("target_op_type", replace(TEXTS, choices=_OPERATORS), _JOB, "--target-op-type OP", _LAYERS, (),
           f"tune only layers of these operators, of {', '.join(_OPERATORS)}", takes="+"),
    Option("selective_update", FLAG, _JOB, "", _LAYERS, (),
           "keep a layer only if the outputs of the model improve, too; slower"),
    Option("following_relu", FLAG, _JOB, "", _LAYERS, (),
           "ignore errors that a Relu or Clip after the layer cuts off"),
    Option("full_range", choice("padded", "free", "off").by_default("padded"), _JOB, "", _ALGORITHM, _AUTO,
           "int8 tensors that are never negative and use the full range: those before padding, too, for "
           "which Pads are added; those for which nothing is; none (default: padded)"),
    Option("output_index", whole(0), _JOB, "--output-index N", _LAYERS, (),
           "index of the output to tune for, from 0 (default: all)"),
    Option("limit", whole(), _JOB, "--limit --data-size N", USUAL, OF_DATA, "run only the first N samples"),
    Option("batch_size", whole().by_default(1), _JOB, "--batch-size N", RUNNING, (),
           "samples per run, if batch sizes are dynamic"),
    Option("optim_device", choice(*_DEVICES).by_default("cpu"), _JOB, "", RUNNING, (),
           "for linear algebra (CuPy, for hip:0 built for ROCm)"),
    Option("infer_device", choice(*_DEVICES), _JOB, "", RUNNING, (), "for inference"),
    Option("memory_limit", whole(0, 2**62), _JOB, "--memory-limit SIZE", RUNNING, (),
           "memory for tensors between layers, such as 500M or 4G; the rest goes to files", read="bytes"),
    Option("steps", unchecked("Steps"), "finetune()", "", OTHER, (),
           "the recipe, instead of transforms.pipelines.retune.TUNE"),
)  # fmt: skip
"""Rows by group, in the order of ``--help``."""

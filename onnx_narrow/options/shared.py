"""Options that several jobs have."""

from __future__ import annotations

from onnx_narrow.options.kinds import (
    CONFIG,
    FLAG,
    METRIC,
    MODEL,
    MOST_AT_ONCE,
    NUMBERS,
    ON,
    PATH,
    PREPROCESS,
    SHAPES,
    SIZE,
    TABLE,
    TEXT,
    choice,
    number,
    unchecked,
    whole,
)
from onnx_narrow.options.option import OTHER, RUNNING, SAMPLES, SEARCH, USUAL, Need, Option

TARGETS = (
    *("ort-cpu", "ort-cuda", "tensorrt", "openvino", "qnn"),
    *("ryzen-ai-cnn", "ryzen-ai-bf16", "ryzen-ai-float-scale"),
)
"""Names of the table of deployment targets, repeated here so that help needs no imports."""

FILES = ": a folder, or an .npy or .npz file"
"""Forms of samples on the command line."""

DATA = (Need("{data}"),)
RANDOM_TOO = (Need("{data} or {random_data}"),)
JUDGED = Need("{data}, without {fast}, {ranges} or {random_data}")
A_MODEL = Need("{output} instead of {analyze_only}", lambda given: "analyze_only" not in given)
"""Of mixed precision."""

_OF_RUNS = {"quantize": RANDOM_TOO, "*": DATA}
_OF_MODEL = {"mix_precision": (A_MODEL,)}
_BOUND = Need("{min_metric} or {max_loss}")
_PROVIDER = "execution provider of ONNX Runtime, or a device: cuda:0, hip:0 (default: cpu)"

_SCHEMES = "quantize mix_precision"
_CHANGES = "quantize convert_bf16 mix_precision"
_WRITERS = "quantize convert_bf16 mix_precision finetune"
_READERS = "quantize convert_bf16 mix_precision finetune infer report evaluate()"
_FUNCTIONS = (
    "quantize() convert_bf16() mix_precision() finetune() infer() evaluate() report() inspect() check()"
)
_COMMANDS = (
    "--quantize --convert_bf16 --mix_precision --finetune --infer --evaluate --report --inspect --check "
    "--formats"
)

_SAMPLES: tuple[Option, ...] = (
    Option("limit", whole(), f"{_CHANGES} infer report evaluate()", "--limit N", USUAL, DATA,
           "run only the first N samples"),
    Option("image_size", SIZE, _READERS, "--image-size HxW", SAMPLES, DATA,
           "resize images to this size; one number for a square", read="size"),
    Option("mean", NUMBERS, _READERS, "--mean X[,X,X]", USUAL, DATA,
           "mean of image channels, of pixels from 0 to 255 (default: 0)", read="means"),
    Option("std", NUMBERS, _READERS, "--std X[,X,X]", USUAL, DATA,
           "standard deviation: images become (pixel - mean) / std (default: 1)", read="scales"),
    Option("layout", choice("NCHW", "NHWC"), _READERS, "", SAMPLES, DATA,
           "dimensions of image inputs", read="upper"),
    Option("preprocess", PREPROCESS, _READERS, "--preprocess NAME", USUAL, DATA,
           "mean and std by name: imagenet, mobilenet (-1 to 1) or zero-one; or FILE.py:FUNCTION of a PIL "
           "image"),
    Option("sequences", FLAG, _READERS, "", SAMPLES, DATA,
           "samples are folders of steps, or arrays with an axis of time before their own: states are fed "
           "back"),
    Option("states", TABLE("Mapping[str, str]"), _READERS, "--state IN=OUT", SAMPLES, (Need("{sequences}"),),
           "input of a state and its output, beside those that are found; repeatable", read="state"),
    Option("feeds_from", MODEL, _READERS, "--feeds-from MODEL", SAMPLES,
           (*DATA, Need("single samples, without {sequences}")),
           "encoder that makes inputs of the model, from samples of the same names in a folder DIR/MODEL",
           read="path"),
    Option("feeds", TABLE("Mapping[str, str]"), _READERS, "--feed OUT=IN", SAMPLES, (Need("{feeds_from}"),),
           "output or input of the encoder, and the input for it (default: equal names); repeatable",
           read="feed"),
)  # fmt: skip
OF_SAMPLES = ("data", *(row.name for row in _SAMPLES))
"""Options that say which samples are run, and how they are read."""

ROWS: tuple[Option, ...] = (
    Option("config", CONFIG, _SCHEMES, "--config NAME|FILE", USUAL, (), "a preset or a TOML file"),
    Option("target", choice(*TARGETS), "quantize convert_bf16", "--target NAME", USUAL, (),
           f"runtime to make the model for, which sets defaults and checks the result: {', '.join(TARGETS)}"),
    Option("assignments", unchecked("Assignments", ()), _SCHEMES, "--set KEY=VALUE", USUAL, (),
           "any key of the scheme in TOML, such as percentile=99.9; repeatable"),
    Option("storage", choice("plain", "packed").by_default("plain"),
           "quantize mix_precision finetune", "", USUAL, _OF_MODEL,
           "store block weights as float32 (plain) or in their bits (packed)"),
    *_SAMPLES,
    Option("calibration_cache", PATH, _SCHEMES, "--calibration-cache FILE", SAMPLES, DATA,
           "store measured ranges in this file, and reuse them for the same model and data"),
    # gates
    Option("metric", METRIC, f"{_WRITERS} evaluate", "--metric NAME|FILE.py:FUNCTION", SEARCH,
           {"quantize": (JUDGED, _BOUND), "mix_precision": (A_MODEL, *DATA, _BOUND), "evaluate": (),
            "*": (*DATA, _BOUND)},
           "metric that held-out samples must meet: sqnr, top1, kl, cosine, f1 or FILE.py:FUNCTION"),
    Option("min_metric", number(), f"{_WRITERS} evaluate", "--min-metric X", SEARCH, (Need("{metric}"),),
           "least that the metric may be"),
    Option("max_loss", number(0), f"{_WRITERS} evaluate", "--max-loss X", SEARCH, (Need("{metric}"),),
           "most by which it may be less than the float model's"),
    # running
    Option("time", ON, "convert_bf16 mix_precision finetune", "--no-time", RUNNING, _OF_MODEL,
           "do not time the model beside the float model"),
    Option("provider", TEXT, _WRITERS, "--provider NAME", RUNNING, _OF_RUNS, _PROVIDER),
    Option("provider", TEXT.by_default("cpu"), "infer report evaluate()", "--provider NAME", RUNNING, DATA,
           _PROVIDER),
    Option("threads", whole(1, MOST_AT_ONCE), _READERS, "--threads N", RUNNING, {"evaluate": DATA},
           "threads (default: all cores)"),
    Option("memory_limit", whole(0, 2**62), _SCHEMES, "--memory-limit SIZE", RUNNING, _OF_RUNS,
           "memory for tensors of a sample while ranges are measured, such as 500M or 4G; more of them is an "
           "error", read="bytes"),
    Option("jobs", whole(1, MOST_AT_ONCE), "quantize finetune", "--jobs N", RUNNING, _OF_RUNS,
           "processes that run samples, with the same result for any N (default: this one alone)"),
    Option("dask", TEXT, f"{_SCHEMES} finetune", "--dask ADDRESS", RUNNING, _OF_RUNS,
           "the same on a Dask cluster whose workers see the folder TMPDIR: tcp://host:port of its "
           "scheduler, or 'local' for {jobs} workers here"),
    Option("resume", PATH, "quantize finetune", "--resume DIR", RUNNING,
           {"quantize": (JUDGED,), "*": (Need("no {selective_update}"),)},
           "keep each layer that is fitted or tuned in this folder until the model is written; a run that "
           "was stopped goes on after them, with the same model, samples and options"),
    # what is written
    Option("opset", whole(13), _CHANGES, "--opset N", OTHER, (),
           "ONNX opset of the result: raised, or lowered as far as no node changes its meaning"),
    Option("input_shapes", SHAPES, _CHANGES, "--input-shape NAME:1,3,224,224",
           OTHER, (), "fix the free dimensions of an input; repeatable", read="shape"),
    Option("allow_code", FLAG, _SCHEMES, "", OTHER, (),
           "allow the key evaluate of the scheme to run a file outside the scheme's folder"),
    Option("force", FLAG, _WRITERS, "", USUAL,
           {"mix_precision": (Need("{output}, {json}, {csv} or {chart}"),)}, "overwrite an existing output"),
    Option("save_as_external_data", FLAG, _WRITERS, "--save_as_external_data", OTHER, _OF_MODEL,
           "store weights in OUTPUT.HASH.data, named by their hash; automatic above 2 GiB"),
    Option("functions", ON, _WRITERS, "--no-functions", OTHER, _OF_MODEL,
           "leave out the functions by which a model runs without this package's operator library"),
    Option("progress", unchecked("Watcher | Events"), _FUNCTIONS, "", OTHER, (),
           "called with the phase, how many pieces are done, and of how many"),
    Option("verbose", FLAG, _COMMANDS, "", OTHER, (),
           "print details, log each step, and show the traceback of an error"),
)  # fmt: skip
"""Rows by group, in the order of ``--help``."""

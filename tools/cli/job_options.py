"""Options that tools share, as classes that the job of each tool is made of.

:func:`tools.cli.command_line.parse` fills them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from tools.cli.deployment import TARGETS
from tools.cli.option_values import MOST_AT_ONCE, bytes_of, input_shape, number, numbers, pair, size, whole
from tools.cli.options import OTHER, RUNNING, SAMPLES, option

_sample = partial(option, group=SAMPLES)

SAMPLES_HELP = """\
samples: a folder of .npz files with one array per input name; of .npy files, for models with one input, each
with a batch or a sample without its batch dimension; of .png, .jpg and .jpeg files, for models with one image
input; of .npy files of tokens, a text or one in each row, for language models: masks, positions and empty
caches are made. Or one .npy or .npz file with the samples along the first axis of its arrays. Numbers of
another type are cast where all keep their values.

images become (pixel - mean) / std, with pixels from 0 to 255, in a batch of one:
  --preprocess mobilenet    --mean 127.5 --std 127.5                                  -1..1
  --preprocess zero-one     --std 255                                                 0..1
  --preprocess imagenet     --mean 123.675,116.28,103.53 --std 58.395,57.12,57.375    torchvision
Size, channels and layout follow from the shape of the model's input if it is fixed."""

SAMPLES_BRIEF = """\
samples: a folder of .npz files with one array per input name, of .npy files or images for models
with one input, of .npy files of tokens for language models; or one such .npy or .npz file with all."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What all tools have.

    ``given``: the options on the command line by the names of their values, as they are written. ``changes``:
    values of those that are keys of a scheme, not fields.
    """

    given: Mapping[str, str]
    changes: Mapping[str, Any]
    verbose: bool = option(
        "--verbose", "print details, log each step, and show the traceback of an error", group=OTHER
    )

    def keywords(self, *left_out: str) -> dict[str, Any]:
        """Return the given options as keywords of the API; ``left_out`` are no such keywords."""
        names = {one.name for one in fields(self)} - {"verbose", *left_out}
        given = {name: getattr(self, name) for name in self.given if name in names}
        if "input_shapes" in given:
            given["input_shapes"] = by_name(given["input_shapes"])
        for name in given.keys() & {"states", "feeds"}:
            given[name] = dict(given[name])
        return given | dict(self.changes)


def samples_folder(spelled: str = "--data PATH", help: str = "samples", **settings: Any) -> Any:
    """Return the field ``data`` of a tool; ``help``: what samples are for."""
    return option(spelled, f"{help}: a folder, or an .npy or .npz file", type=Path, **settings)


def sample_limit(spelled: str = "--limit N") -> Any:
    """Return the field ``limit`` of a tool."""
    return option(spelled, "run only the first N samples", type=whole())


def provider() -> Any:
    """Return the field ``provider`` of a tool."""
    words = "execution provider of ONNX Runtime, or a device: cuda:0, hip:0 (default: cpu)"
    return option("--provider NAME", words, group=RUNNING, default="cpu")


def threads() -> Any:
    """Return the field ``threads``: whatever is written is run once."""
    words = "threads (default: all cores)"
    return option("--threads N", words, group=RUNNING, type=whole(1, MOST_AT_ONCE), default=0)


def memory_limit(words: str) -> Any:
    """Return the field of that name."""
    return option("--memory-limit SIZE", words, group=RUNNING, type=bytes_of)


@dataclass(frozen=True, kw_only=True)
class DataOptions(Options):
    """Which samples are run, and how; ``data`` is None in tools that need none."""

    data: Path | None = samples_folder()
    limit: int | None = sample_limit()
    image_size: tuple[int, int] | None = _sample(
        "--image-size HxW", "resize images to this size; one number for a square", type=size
    )
    mean: tuple[float, ...] = option(
        "--mean X[,X,X]",
        "mean of image channels, of pixels from 0 to 255 (default: 0)",
        type=numbers(number()),
        default=(0.0,),
    )
    std: tuple[float, ...] = option(
        "--std X[,X,X]",
        "standard deviation: images become (pixel - mean) / std (default: 1)",
        type=numbers(number(0, above=True)),
        default=(1.0,),
    )
    layout: str | None = _sample(
        "--layout", "dimensions of image inputs", type=str.upper, choices=("NCHW", "NHWC")
    )
    preprocess: str | None = option(
        "--preprocess NAME",
        "mean and std by name: imagenet, mobilenet (-1 to 1) or zero-one; or FILE.py:FUNCTION of a PIL image",
    )
    sequences: bool = _sample(
        "--sequences",
        "samples are folders of steps, or arrays with an axis of time before their own: states are fed back",
    )
    states: tuple[tuple[str, str], ...] = option(
        "--state IN=OUT",
        "input of a state and its output, beside those that are found; repeatable",
        group=SAMPLES,
        type=pair("an input and its output, IN=OUT"),
        action="append",
        default=[],
    )
    feeds_from: Path | None = option(
        "--feeds-from MODEL",
        "encoder that makes inputs of the model, from samples of the same names in a folder DIR/MODEL",
        group=SAMPLES,
        type=Path,
    )
    feeds: tuple[tuple[str, str], ...] = option(
        "--feed OUT=IN",
        "output or input of the encoder, and the input for it (default: equal names); repeatable",
        group=SAMPLES,
        type=pair("an output and the input for it, OUT=IN"),
        action="append",
        default=[],
    )
    provider: str = provider()
    threads: int = threads()


def opset() -> Any:
    """Return the field ``opset`` of a tool, 0 for whatever the model has or needs."""
    words = "ONNX opset of the result: raised, or lowered as far as no node changes its meaning"
    return option("--opset N", words, group=OTHER, type=whole(13), default=0)


def input_shapes() -> Any:
    """Return the field ``input_shapes`` of a tool: pairs of name and shape."""
    words = "fix the free dimensions of an input; repeatable"
    spelled = "--input-shape NAME:1,3,224,224"
    return option(spelled, words, group=OTHER, type=input_shape, action="append", default=[])


def by_name(shapes: Sequence[tuple[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of inputs by name; ValueError for a name that is given twice."""
    found = dict(shapes)
    for name, shape in shapes:
        if found[name] != shape:
            raise ValueError(f"--input-shape '{name}' is given twice, with different sizes")
    return found


def force(what: str) -> Any:
    """Return the field ``force`` of a tool."""
    return option("--force", f"overwrite {what}")


def timed(also: str = "") -> Any:
    """Return the field ``time``, true unless the option is given; ``also``: what it leaves out besides."""
    words = f"do not time the model beside the float model{also}"
    return option("--no-time", words, group=RUNNING, action="store_false")


def storage() -> Any:
    """Return the field ``storage`` of a tool that writes block formats."""
    words = "store block weights as float32 (plain) or in their bits (packed)"
    return option("--storage", words, choices=("plain", "packed"), default="plain")


@dataclass(frozen=True, kw_only=True)
class ModelOutput(Options):
    """Which model is written, and how; ``output`` is empty if none is."""

    output: str
    force: bool = force("an existing output")
    save_as_external_data: bool = option(
        "--save_as_external_data",
        "store weights in OUTPUT.HASH.data, named by their hash; automatic above 2 GiB",
        group=OTHER,
    )
    functions: bool = option(
        "--no-functions",
        "leave out the functions by which a model runs without this package's operator library",
        group=OTHER,
        action="store_false",
    )


@dataclass(frozen=True, kw_only=True)
class ModelJob(DataOptions, ModelOutput):
    """A job that reads samples, if any, and writes a model."""

    time: bool = timed()


TENSORS_OF_A_SAMPLE = (
    "memory for tensors of a sample while ranges are measured, such as 500M or 4G; more of them is an error"
)


@dataclass(frozen=True, kw_only=True)
class SchemeJob(ModelJob):
    """A quantization by a scheme: ``assignments`` are those of ``--set``."""

    @property
    def deployment(self) -> str:
        """The name of the target that the model is made for, empty without one."""
        return ""

    input: str
    output: str = option("--output MODEL", "the quantized model to write", default="")
    config: str = option("--config NAME|FILE", "a preset or a TOML file", default="")
    assignments: tuple[str, ...] = option(
        "--set KEY=VALUE",
        "any key of the scheme in TOML, such as percentile=99.9; repeatable",
        action="append",
        default=[],
    )
    opset: int = opset()
    input_shapes: tuple[tuple[str, tuple[int, ...]], ...] = input_shapes()
    calibration_cache: Path | None = _sample(
        "--calibration-cache FILE",
        "store measured ranges in this file, and reuse them for the same model and data",
        type=Path,
    )
    storage: str = storage()
    memory_limit: int | None = memory_limit(TENSORS_OF_A_SAMPLE)
    allow_code: bool = option(
        "--allow-code",
        "allow the key evaluate of the scheme to run a file outside the scheme's folder",
        group=OTHER,
    )


_SCHEME = "one of --config NAME|FILE, --target {}, or --set activation=FORMAT and --set weight=FORMAT"


def why_no_scheme(job: SchemeJob, *missing: str, runtime: str = "NAME") -> str | None:
    """Return the error of a job without a scheme, or with more than one target, or None.

    ``missing``: other options that are required; ``runtime``: how the value of ``--target`` is written.
    """
    keys = {assignment.partition("=")[0].strip() for assignment in job.assignments}
    has_scheme = job.config or job.deployment or keys >= {"activation", "weight"}
    required = [*missing, *([] if has_scheme else [_SCHEME.format(runtime)])]
    if required:
        return f"the following arguments are required: {', '.join(required)}"
    named = [name for name in job.changes.get("target", ()) if name in TARGETS]
    return f"--target {named[0]} and {named[1]}: a model is made for one runtime" if named[1:] else None

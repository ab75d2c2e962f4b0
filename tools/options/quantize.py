"""The command line of ``tools.quantize``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tools.cli.deployment import deployment
from tools.cli.gate_options import GateOptions
from tools.cli.job_options import (
    TENSORS_OF_A_SAMPLE,
    SchemeJob,
    memory_limit,
    provider,
    samples_folder,
    timed,
)
from tools.cli.option_values import number, whole
from tools.cli.options import OTHER, SAMPLES, SEARCH, Option, declare, option
from tools.cli.worker_options import dask, jobs, resume

FALLBACKS = ("float32", "int16", "bf16")
"""Names of :data:`transforms.search.target.FALLBACKS`, repeated so that help needs no imports."""

EFFORTS = ("low", "normal", "high")
"""Names of :data:`transforms.judge.constants.EFFORTS`."""

_NEEDS_NO_MODEL = {"print_config", "config", "target", "assignments", "verbose", "fast"}


@dataclass(frozen=True, kw_only=True)
class QuantizeJob(SchemeJob, GateOptions):
    """A quantization; ``changes`` are keys of :class:`transforms.scheme.Scheme`."""

    input: str = option("--input MODEL", "the float model, or a folder of them; never changed", default="")
    data: Path | None = samples_folder("--data --calibration-data PATH", "samples to measure ranges on")
    target: str = deployment()
    time: bool = timed(also=", nor its layers for --target ort-cpu")
    random_data: int | None = option(
        "--random-data N",
        "measure ranges on N random samples: for experiments, the result is not accurate",
        group=SAMPLES,
        type=whole(),
    )
    provider: str = provider()
    memory_limit: int | None = memory_limit(TENSORS_OF_A_SAMPLE)
    jobs: int | None = jobs(
        "processes that run samples, with the same result for any N (default: this one alone)"
    )
    dask: str | None = dask()
    resume: Path | None = resume()
    fast: bool = option(
        "--fast",
        "do not compare outputs: settings that are 'auto' follow fixed rules",
    )
    effort: str = option(
        "--effort",
        "how many runs of the model the search of settings may take (default: normal)",
        group=SEARCH,
        choices=EFFORTS,
        default="",
    )
    min_sqnr: float | None = option(
        "--min-sqnr DB",
        "least SQNR of every output on held-out samples: keeps as few layers as possible in float for it",
        type=number(),
    )
    top1: float | None = option(
        "--top1 X",
        "largest share of rows whose first choice may change, such as 0.01: does the same",
        group=SEARCH,
        type=number(0, 1),
    )
    fallback: str = option(
        "--fallback",
        "format of layers that are kept finer for it (default: float32)",
        group=SEARCH,
        choices=FALLBACKS,
        default=FALLBACKS[0],
    )
    allow_miss: bool = option(
        "--allow-miss",
        "write the best model found even if it misses the target; its metadata have the figure",
        group=SEARCH,
    )
    allow_large: bool = option(
        "--allow-large",
        "write a model with more than 0.9 of the bytes of the float model, if a target takes that",
        group=SEARCH,
    )
    matmul_nbits: bool = option(
        "--matmul-nbits",
        "write products with integer weights in blocks as MatMulNBits of ONNX Runtime",
        group="scheme",
    )
    accuracy_level: int | None = option(
        "--accuracy-level",
        "of MatMulNBits: 1 keeps its inputs in float32, 4 lets kernels round them to int8, faster (default; "
        "with 4 bits where it costs less than .005 nats)",
        group=OTHER,
        type=whole(1, 4),
        choices=(1, 4),
    )
    embeddings: str = option(
        "--embeddings",
        "store embeddings, and output layers tied to them, in 8 or 4 bits, as operators of ONNX Runtime, "
        "or keep them in float",
        group=OTHER,
        choices=("int8", "int4", "float"),
        default="",
    )
    kv_cache: str = option(
        "--kv-cache",
        "store caches of keys and values in 8 or 4 bits, as inputs and outputs, with scales from the samples",
        group=OTHER,
        choices=("int8", "int4"),
        default="",
    )
    ranges: Path | None = option(
        "--ranges FILE",
        "take scales and zero points of tensors from this file, see below",
        group="scheme",
        type=Path,
    )
    export_ranges: Path | None = option(
        "--export-ranges FILE",
        "write scales, zero points and ranges of all tensors to FILE.json, or to FILE.encodings",
        group="scheme",
        type=Path,
    )
    print_config: bool = option(
        "--print-config", "print the full scheme in use as TOML; without --input, only that"
    )

    @property
    def deployment(self) -> str:
        """The name of the target that the model is made for, empty without one."""
        return self.target


_key = partial(declare, group="scheme")

KEYS: Mapping[str, Option] = {
    "calibrate_method": _key(
        "--calibrate-method",
        "how ranges of activations are found (default: as in the config); auto: as the outputs decide",
        choices=("auto", "MinMax", "Entropy", "Percentile", "MSE"),
    ),
    "per_channel": declare(
        "--per-channel",
        "scale weights per output channel (default: as in the config)",
        action=argparse.BooleanOptionalAction,
    ),
    "exclude_nodes": declare(
        "--exclude-node GLOB", "keep nodes in float by name; repeatable", action="append"
    ),
    "exclude_op_types": declare(
        "--exclude-op OP", "keep an operator type in float; repeatable", action="append"
    ),
    "keep_weight_nodes": _key(
        "--keep-weight-nodes",
        "store float weights with nodes that round them in every run, for backends that require it",
        action="store_true",
        default=None,
    ),
    "optimize": _key(
        "--no-optimize", "skip graph optimization and fusion", action="store_false", default=None
    ),
    "domain": _key(
        "--domain",
        "domain of our operators (default: ai.onnx.contrib)",
        choices=("ai.onnx.contrib", "com.amd.quark"),
    ),
    "qdq_domain": _key(
        "--qdq-domain",
        "domain of QuantizeLinear and DequantizeLinear: ONNX's own (default), or one for old opsets",
        choices=("", "com.microsoft"),
    ),
}
"""Options in place of keys of the scheme; those that are not given stay None."""


def in_vain(job: QuantizeJob) -> str | None:
    """Return the error of the first option that only matters to a model, of a job that has none, or None."""
    vain = [words for name, words in job.given.items() if name not in {*_NEEDS_NO_MODEL, *job.changes}]
    return f"{vain[0]} requires --input and --output" if vain else None

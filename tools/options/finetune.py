"""The command line of ``tools.finetune``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tools.cli.gate_options import GateOptions
from tools.cli.job_options import (
    ModelJob,
    memory_limit,
    sample_limit,
    samples_folder,
    storage,
)
from tools.cli.option_values import LARGEST, number, whole
from tools.cli.options import RUNNING, option
from tools.cli.worker_options import dask, jobs, resume

ALGORITHMS = ("auto", "gptq", "coordinate_descent", "adaquant", "adaround")
FULL_RANGE = ("padded", "free", "off")
OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
DEVICES = ("cpu", "cuda:0", "hip:0")

_step = partial(option, group="algorithm")
_layers = partial(option, group="layers")
_running = partial(option, group=RUNNING)


@dataclass(frozen=True, kw_only=True)
class FinetuneJob(ModelJob, GateOptions):
    """Fine-tuning of a quantized model."""

    float_model: str = option("--float MODEL", "the float model; never changed", required=True)
    quantized: str = option("--quantized MODEL", "the quantized model; never changed", required=True)
    output: str = option("--output MODEL", "the tuned model to write", required=True)
    data: Path = samples_folder(help="samples to tune on", required=True)
    storage: str = storage()
    algorithm: str = option(
        "--algorithm", "how weights are found, see below (default: auto)", choices=ALGORITHMS, default="auto"
    )
    num_iterations: int | None = _step("--num-iterations N", "steps per layer (default: 1000)", type=whole())
    learning_rate: float | None = _step(
        "--learning-rate X", "in steps of the grid (default: the algorithm's)", type=number(0, above=True)
    )
    early_stop: bool = _step("--early-stop", "stop a layer when steps no longer help")
    fixed_seed: int = option(
        "--fixed-seed N",
        "seed for the choice of sample rows",
        group="algorithm",
        type=whole(0, LARGEST),
        default=0,
    )
    target_op_type: tuple[str, ...] = _layers(
        "--target-op-type OP",
        f"tune only layers of these operators, of {', '.join(OPERATORS)}",
        nargs="+",
        choices=OPERATORS,
        default=(),
    )
    selective_update: bool = _layers(
        "--selective-update", "keep a layer only if the outputs of the model improve, too; slower"
    )
    following_relu: bool = _layers(
        "--following-relu", "ignore errors that a Relu or Clip after the layer cuts off"
    )
    full_range: str = option(
        "--full-range",
        "int8 tensors that are never negative and use the full range: those before padding, too, for which\n"
        "Pads are added; those for which nothing is; none (default: padded)",
        group="algorithm",
        choices=FULL_RANGE,
        default="padded",
    )
    output_index: int | None = _layers(
        "--output-index N", "index of the output to tune for, from 0 (default: all)", type=whole(0)
    )
    limit: int | None = sample_limit("--limit --data-size N")
    jobs: int | None = jobs(
        "processes that run samples, with the same result for any N (default: this one alone)"
    )
    dask: str | None = dask()
    resume: Path | None = resume()
    batch_size: int = _running(
        "--batch-size N", "samples per run, if batch sizes are dynamic", type=whole(), default=1
    )
    optim_device: str = _running(
        "--optim-device",
        "for linear algebra (CuPy, for hip:0 built for ROCm)",
        choices=DEVICES,
        default="cpu",
    )
    infer_device: str = _running("--infer-device", "for inference", choices=DEVICES, default="cpu")
    memory_limit: int | None = memory_limit(
        "memory for tensors between layers, such as 500M or 4G; the rest goes to files"
    )

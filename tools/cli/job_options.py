"""The options of each tool once they are parsed: one frozen class a tool, of groups that tools share.

Fields have the names of the options; :func:`tools.cli.command_line.parse` fills them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transforms.run.run_model import RunOptions
    from transforms.run.samples import ImageOptions


@dataclass(frozen=True)
class Options:
    """What all tools have.

    ``given``: the options on the command line by the names of their values, as they are written. ``changes``:
    values of those that are keys of a scheme, not fields.
    """

    given: Mapping[str, str]
    changes: Mapping[str, Any]
    verbose: bool


@dataclass(frozen=True)
class DataOptions(Options):
    """Which samples are run, and how; ``data`` is None in tools that need none."""

    data: Path | None
    limit: int | None
    provider: str
    threads: int
    image_size: tuple[int, int] | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    layout: str | None

    @property
    def images(self) -> ImageOptions:
        """How images become inputs."""
        from transforms.run.samples import ImageOptions

        return ImageOptions(self.image_size, self.mean, self.std, self.layout)

    @property
    def run(self) -> RunOptions:
        """How models run."""
        from transforms.run.run_model import RunOptions

        return RunOptions(self.provider, self.threads)


@dataclass(frozen=True)
class ModelOutput(Options):
    """Which model is written, and how; ``output`` is empty if none is."""

    output: str
    force: bool
    save_as_external_data: bool


@dataclass(frozen=True)
class Bf16Job(DataOptions, ModelOutput):
    """A conversion to BF16."""

    input: str
    format: str
    weights: str
    domain: str
    keep_io_types: bool
    exclude_node: Sequence[str]
    exclude_op: Sequence[str]
    saturate_activations: bool
    strict: bool
    optimize: bool
    min_sqnr: float | None


@dataclass(frozen=True)
class SchemeJob(DataOptions, ModelOutput):
    """A quantization by a scheme: ``assignments`` are those of ``--set``."""

    input: str
    config: str
    assignments: Sequence[str]
    allow_code: bool
    calibration_cache: Path | None


@dataclass(frozen=True)
class QuantizeJob(SchemeJob):
    """A quantization; ``changes`` are keys of :class:`transforms.scheme.Scheme`."""

    print_config: bool
    random_data: int | None


@dataclass(frozen=True)
class MixJob(SchemeJob):
    """Automatic mixed precision; ``changes`` are keys of its table in the scheme."""

    analyze_only: bool
    labels: Path | None
    jobs: int
    dask: str | None
    resume: Path | None
    json: Path | None
    csv: Path | None
    chart: Path | None
    plot: Path | None


@dataclass(frozen=True)
class FinetuneJob(DataOptions, ModelOutput):
    """Fine-tuning of a quantized model."""

    data: Path
    float_model: str
    quantized: str
    algorithm: str
    num_iterations: int | None
    learning_rate: float | None
    early_stop: bool
    fixed_seed: int
    batch_size: int
    target_op_type: Sequence[str]
    selective_update: bool
    following_relu: bool
    output_index: int | None
    optim_device: str
    infer_device: str
    memory_limit: int | None
    checkpoint: Path | None


@dataclass(frozen=True)
class InferJob(DataOptions):
    """A run of a model on samples."""

    data: Path
    input: Path
    output: Path
    force: bool


@dataclass(frozen=True)
class ReportJob(DataOptions):
    """A comparison of two models."""

    data: Path
    float_model: Path
    quantized: Path
    output: Path
    force: bool


@dataclass(frozen=True)
class EvaluateJob(Options):
    """A comparison of two folders of results."""

    baseline_results_folder: Path
    quantized_results_folder: Path
    peak: float | None
    labels: Path | None
    allow_missing: bool
    json: Path | None
    csv: Path | None
    force: bool


@dataclass(frozen=True)
class FormatsJob(Options):
    """The table of formats."""

    input: Path | None
    plot: Path | None
    force: bool

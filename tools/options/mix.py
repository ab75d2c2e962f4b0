"""The command line of ``tools.auto_mixed_precision``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tools.cli.deployment import TARGETS
from tools.cli.gate_options import GateOptions
from tools.cli.job_options import (
    SchemeJob,
    force,
    samples_folder,
)
from tools.cli.option_values import file_size, number, whole
from tools.cli.options import RUNNING, SEARCH, Option, declare, option
from tools.cli.worker_options import dask, jobs

_format = partial(declare, group="formats and layers")
_target = partial(declare, group="targets")
_search = partial(declare, group=SEARCH)
_result = partial(option, group="results", type=Path)


@dataclass(frozen=True, kw_only=True)
class MixJob(SchemeJob, GateOptions):
    """Automatic mixed precision; ``changes`` are keys of its table in the scheme."""

    input: str = option("--input MODEL", "the float model; never changed", required=True)
    data: Path | None = samples_folder(help="samples to measure ranges and errors on")
    labels: Path | None = option(
        "--labels FILE.npy",
        "class numbers of all rows, for --top1-target",
        type=Path,
    )
    analyze_only: bool = option("--analyze-only", "measure sensitivities, write no model")
    json: Path | None = _result("--json FILE", "write sensitivities as JSON")
    csv: Path | None = _result("--csv FILE", "write the same as CSV")
    chart: Path | None = _result("--chart FILE", "draw sensitivities as bars, .png or .svg")
    plot: Path | None = _result("--plot FILE", "draw bits against error, .png or .svg")
    jobs: int | None = jobs("processes that measure layers (default: 1)")
    dask: str | None = dask()
    resume: Path | None = option(
        "--resume DIR",
        "store sensitivities in this folder, and fitted layers until the model is written, and resume from\n"
        "those of the same model, data and options",
        group=RUNNING,
        type=Path,
    )
    force: bool = force("an existing output")

    @property
    def deployment(self) -> str:
        """The deployment target among the values of --target, which names formats, too; empty without one."""
        return next((name for name in self.changes.get("target", ()) if name in TARGETS), "")


KEYS: Mapping[str, Option] = {
    "target": declare(
        "--target FORMAT|NAME",
        "format that layers may get, such as bfp16 or int8/int4 (activation/weight); or the runtime to make "
        f"the model for: {', '.join(TARGETS)}; repeatable",
        action="append",
    ),
    "activation_target": _format("--activation-target FORMAT", "the same, for the activation only"),
    "weight_target": _format("--weight-target FORMAT", "the same, for the weight only"),
    "target_op_types": _format("--target-op-type OP", "only layers of these operators", nargs="+"),
    "exclude_nodes": declare("--exclude-node GLOB", "layers to exclude by name; repeatable", action="append"),
    "l2_target": _target(
        "--l2-target X", "largest L2 norm of the outputs' error, mean over samples", type=number(0)
    ),
    "sqnr_target": declare("--sqnr-target X", "least SQNR of the outputs, in dB", type=number()),
    "sqnr_drop_target": declare(
        "--sqnr-drop-target X", "largest drop of SQNR below the baseline, in dB", type=number(0)
    ),
    "top1_target": declare(
        "--top1-target X",
        "largest drop of top-1 accuracy, as a share of rows, such as 0.01",
        type=number(0, 1),
    ),
    "kl_target": declare(
        "--kl-target X",
        "largest KL divergence after Softmax in nats, mean over rows (tokens)",
        type=number(0),
    ),
    "evaluate_target": _target(
        "--evaluate-target X",
        "largest loss of the function of --evaluate against the float model",
        type=number(0),
    ),
    "bits_target": declare(
        "--bits-target X",
        "mean bits per weight, at most",
        type=number(0),
    ),
    "size_target": _target(
        "--size BYTES",
        "size of the file that is written, such as 190MB or 180MiB, at most",
        type=file_size,
    ),
    "evaluate": _target(
        "--evaluate FILE.py:FUNCTION", "function of the outputs of all samples; higher is better"
    ),
    "output_index": _search(
        "--output-index N",
        "index of the output to measure, from 0 (default: -1, all)",
        type=whole(-1),
    ),
    "dual_quant_nodes": _search(
        "--dual-quant-nodes",
        "quantize tensors between layers of two formats in both formats",
        action="store_true",
        default=None,
    ),
}
"""Options in place of keys of the table of the scheme; those that are not given stay None."""

"""Give layers cheaper formats as far as accuracy allows: ``python -m tools.auto_mixed_precision --help``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tools.cli import command_line
from tools.cli.command_line import Parser
from tools.cli.data_options import SAMPLES_HELP, add_data_options
from tools.cli.job_options import MixJob
from tools.cli.needs import DATA, Need
from tools.cli.option_values import LARGEST, MOST_AT_ONCE, number, whole

_EPILOG = f"""\
The scheme of --config is the baseline, its table [auto_mixed_precision] sets which formats layers may get and
the target for the outputs; the options below replace keys of that table. Presets that have it:
BF16_MIXED_BFP16, BF16_MIXED_MXINT8, S16S8_MIXED_S8S8, and each with _ADAQUANT, which then tunes the weights
and restores them if the tuned model would miss the target.
Only one target applies: an option here replaces the target of the table.

The key evaluate of the table names a Python file that is run: announced on stderr, and refused outside the
folder of the scheme without --allow-code. --evaluate on the command line is always allowed.

method: ranges are measured once for all formats; sensitivities say in which order layers are tried;
each model tried is built and run, and judged by its actual outputs. Without a target every layer is
moved to the smallest format. Layers that can move are Conv, ConvTranspose, Gemm and MatMul outside of If,
Loop and Scan which the scheme neither excludes nor gives formats of their own.

strategies:
  speed     from the baseline down: the least sensitive layers first, layers that miss the target are skipped
  quality   from the smallest formats up: the most sensitive layers back until the target holds
  budget    the least harm within --bits-target or --bytes-target; if that misses a target, or with a
            target alone, as few bits of weights as keep it, found by halving their range

{SAMPLES_HELP}

exit codes: 0 done; 1 error in the model, the data, the target or the machine; 2 usage.
"""

_NUMBERS = {
    "l2_target": (number(0), "mean over samples of the L2 norm of the outputs' error, at most"),
    "sqnr_target": (number(), "SQNR of the outputs in dB, at least"),
    "sqnr_drop_target": (number(0), "dB by which SQNR may be below the baseline"),
    "top1_target": (number(0, 1), "share of rows that may become wrong, such as 0.01"),
    "evaluate_target": (number(0), "largest loss of the function of --evaluate against the float model"),
    "bits_target": (number(0), "bits per weight, the mean of all, for --strategy budget"),
}

_MODEL = Need("--output, not with --analyze-only", lambda job: job.output)
_FILE = Need("--output, --json, --csv or --chart", lambda job: job.output or job.json or job.csv or job.chart)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code: 0 done, 1 model or data error, 2 usage error."""
    return command_line.run(_parser(), MixJob, _work, argv, why_not=_why_not)


def _work(job: MixJob) -> None:
    command_line.keep_products_on_one_thread()
    from tools.jobs import mix

    mix.mix_file(job)


def _why_not(job: MixJob) -> str | None:
    if bool(job.output) == job.analyze_only:
        return "give one of --output and --analyze-only, and only one"
    if job.analyze_only and job.plot:
        return "--plot draws the models tried, and --analyze-only tries none"
    return _why_not_on_a_cluster(job) if job.data is not None else None


def _why_not_on_a_cluster(job: MixJob) -> str | None:
    if job.dask in (None, "local"):
        return None
    if job.resume is None:
        return "--dask with the address of a scheduler needs --resume DIR, on disks that all workers share"
    if "jobs" in job.given:
        return f"--jobs goes with --dask local: the cluster at '{job.dask}' has its own workers"
    return None


def _parser() -> Parser:
    parser = command_line.make_parser(
        "auto_mixed_precision", "Quantize a float ONNX model in mixed precision.", _EPILOG
    )
    parser.add_argument("--input", required=True, metavar="MODEL", help="the float model; never changed")
    parser.add_argument("--output", default="", metavar="MODEL", help="the quantized model to write")
    parser.add_argument("--config", required=True, metavar="NAME|FILE", help="a preset or a TOML file")
    parser.add_argument(
        "--set",
        dest="assignments",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any key of the scheme; repeatable",
    )
    _add_rule(parser)
    add_data_options(
        parser,
        required=False,
        help="folder of samples to measure ranges and errors on",
        of_samples=(DATA,),
        of_run=(DATA,),
    )
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="FILE.npy",
        needs=(_MODEL, DATA),
        help="class numbers of all rows, for --top1-target",
    )
    parser.add_argument(
        "--calibration-cache",
        type=Path,
        metavar="FILE",
        needs=(DATA,),
        help="store measured ranges in this file, and reuse them for the same model and data",
    )
    _add_work(parser)
    _add_results(parser)
    command_line.add_code_option(parser)
    command_line.add_output_options(parser, needs=(_MODEL,), force=(_FILE,))
    return parser


def _add_rule(parser: Parser) -> None:
    """Add options that take the place of keys; options that are not given stay None."""
    parser.add_argument(
        "--target",
        action="append",
        metavar="FORMAT",
        help="format that layers may get, such as bfp16 or int8/int4 (activation/weight); repeatable",
    )
    for part in ("activation", "weight"):
        parser.add_argument(f"--{part}-target", metavar="FORMAT", help=f"the same, for the {part} only")
    parser.add_argument(
        "--target-op-type",
        dest="target_op_types",
        nargs="+",
        metavar="OP",
        help="only layers of these operators",
    )
    for what in ("include", "exclude"):
        parser.add_argument(
            f"--{what}-node",
            dest=f"{what}_nodes",
            action="append",
            metavar="GLOB",
            help=f"layers to {what} by name; repeatable",
        )
    for name, (read, text) in _NUMBERS.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=read,
            metavar="X",
            needs=(_MODEL,) if name == "bits_target" else (),
            help=text,
        )
    parser.add_argument(
        "--bytes-target",
        type=whole(most=LARGEST),
        metavar="N",
        needs=(_MODEL,),
        help="bytes of all weights, for --strategy budget; shared ones count for each layer",
    )
    parser.add_argument(
        "--evaluate",
        metavar="FILE.py:FUNCTION",
        help="function of the outputs of all samples; higher is better",
    )
    parser.add_argument(
        "--strategy", choices=("speed", "quality", "budget"), needs=(_MODEL,), help="(default: speed)"
    )
    parser.add_argument(
        "--sensitivity",
        choices=("trace", "measured"),
        needs=(DATA,),
        help="estimated in one pass, or measured layer by layer (default: trace)",
    )
    parser.add_argument(
        "--metric",
        choices=("l2", "sqnr", "cosine", "kl", "psnr", "top1", "evaluate"),
        needs=(DATA,),
        help="metric of measured sensitivities (default: the target's, kl for --top1-target, else sqnr)",
    )
    parser.add_argument(
        "--output-index",
        type=whole(-1),
        metavar="N",
        needs=(DATA,),
        help="index of the output to measure, from 0 (default: -1, all)",
    )
    parser.add_argument(
        "--dual-quant-nodes",
        action="store_true",
        default=None,
        help="quantize tensors between layers of two formats in both formats",
    )
    parser.add_argument(
        "--data-size",
        type=whole(),
        metavar="N",
        needs=(DATA,),
        help="measure errors on N samples (default: all)",
    )


def _add_work(parser: Parser) -> None:
    parser.add_argument(
        "--jobs",
        type=whole(1, MOST_AT_ONCE),
        default=1,
        metavar="N",
        needs=(DATA,),
        help="processes for --sensitivity measured (default: 1)",
    )
    parser.add_argument(
        "--dask",
        metavar="ADDRESS",
        needs=(DATA,),
        help="the same on a Dask cluster: tcp://host:port of its scheduler, 'local' for --jobs workers here",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="DIR",
        needs=(DATA,),
        help="store results in this folder, and resume from those of the same model, data and options",
    )


def _add_results(parser: Parser) -> None:
    parser.add_argument(
        "--analyze-only", action="store_true", needs=(DATA,), help="measure sensitivities, write no model"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", needs=(DATA,), help="write the sensitivities as JSON"
    )
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", needs=(DATA,), help="write the sensitivities as CSV"
    )
    parser.add_argument(
        "--chart", type=Path, metavar="FILE", needs=(DATA,), help="draw sensitivities as bars, .png or .svg"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", needs=(DATA,), help="draw bits against error, .png or .svg"
    )


if __name__ == "__main__":
    sys.exit(main())

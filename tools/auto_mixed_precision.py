"""Give layers cheaper formats as far as accuracy allows: ``python -m tools.auto_mixed_precision --help``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.cli import command_line
from tools.cli.data_options import OF_DATA, SAMPLES_HELP, add_data_options
from tools.cli.option_values import LARGEST, MOST_AT_ONCE, number, whole

_EPILOG = f"""\
The scheme of --config is the baseline, its table [auto_mixed_precision] says which formats layers may get and
what the outputs must keep to; options below take the place of keys of that table. Presets that have it:
BF16_MIXED_BFP16, BF16_MIXED_MXINT8, S16S8_MIXED_S8S8, and each with _ADAQUANT, which then tunes the weights
and leaves them as they were where the tuned model would break the target.
There is one target: one that is given here replaces that of the table.

The key evaluate of the table names a Python file that is run: said on stderr before, and refused outside the
folder of the scheme without --allow-code. --evaluate is your own word and needs no other.

how it is done: ranges are measured once for all formats; sensitivities say in which order layers are tried;
each model that is tried is built and run, and judged by its true outputs. Without a target every layer is
moved to the smallest format. Layers that can move are Conv, ConvTranspose, Gemm and MatMul outside of If,
Loop and Scan which the scheme neither excludes nor gives formats of their own.

strategies:
  speed     from the baseline down: the least sensitive layers first, those that break the target are skipped
  quality   from the smallest formats up: the most sensitive layers back until the target holds
  budget    the least harm within --bits-target or --bytes-target; where that breaks a target, or with a
            target alone, as few bits of weights as keep it, found by halving their range

{SAMPLES_HELP}

exit codes: 0 done; 1 the model, the data, the target or the machine stands in the way; 2 usage.
"""

_NUMBERS = {
    "l2_target": (number(0), "mean over samples of the L2 norm of the outputs' error, at most"),
    "sqnr_target": (number(), "SQNR of the outputs in dB, at least"),
    "sqnr_drop_target": (number(0), "dB that SQNR may be below that of the baseline"),
    "top1_target": (number(0, 1), "share of rows that may become wrong, 0.01 for one in a hundred"),
    "evaluate_target": (
        number(0),
        "how much less than for the float model the function of --evaluate may return",
    ),
    "bits_target": (number(0), "bits per weight, the mean of all, for --strategy budget"),
}


_OF_MEASURING = (
    *("analyze_only", "sensitivity", "metric", "output_index", "data_size", "labels", "calibration_cache"),
    *("jobs", "dask", "resume", "json", "csv", "chart", "plot", *OF_DATA),
)
"""Options that do nothing without data."""

_OF_MOVING = ("strategy", "bits_target", "bytes_target", "labels", "save_as_external_data")
"""Options that do nothing where no layer is moved."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code: 0 done, 1 model or data error, 2 usage error."""
    return command_line.run(_parser(), _work, argv, why_not=_why_not)


def _work(options: argparse.Namespace) -> None:
    command_line.keep_products_on_one_thread()
    from tools.jobs import mix

    mix.mix_file(options)


def _why_not(options: argparse.Namespace) -> str | None:
    if bool(options.output) == options.analyze_only:
        return "one of --output and --analyze-only is needed, and not both"
    reason = _why_not_analyzed(options) if options.analyze_only else None
    if options.data is None:
        reason = reason or command_line.unused_option(options, _OF_MEASURING, "--data")
    return reason or _why_not_on_a_cluster(options)


def _why_not_analyzed(options: argparse.Namespace) -> str | None:
    if options.plot:
        return "--plot shows models that are tried, --analyze-only tries none"
    reason = command_line.unused_option(options, _OF_MOVING, "--output, not with --analyze-only")
    if reason or options.json or options.csv or options.chart:
        return reason
    return command_line.unused_option(options, ["force"], "--output, --json, --csv or --chart")


def _why_not_on_a_cluster(options: argparse.Namespace) -> str | None:
    if options.dask in (None, "local"):
        return None
    if options.resume is None:
        return "--dask with the address of a scheduler needs --resume DIR, on disks that all workers share"
    if "jobs" in options.given:
        return f"--jobs goes with --dask local: the cluster at '{options.dask}' has its own workers"
    return None


def _parser() -> argparse.ArgumentParser:
    parser = command_line.make_parser(
        "auto_mixed_precision", "Quantize a float ONNX model in mixed precision.", _EPILOG
    )
    parser.add_argument("--input", required=True, metavar="MODEL", help="the float model; never changed")
    parser.add_argument("--output", metavar="MODEL", help="the quantized model to write")
    parser.add_argument("--config", required=True, metavar="NAME|FILE", help="a preset or a TOML file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any key of the scheme; repeatable"
    )
    _add_rule(parser)
    add_data_options(parser, required=False, help="folder of samples to measure ranges and errors on")
    parser.add_argument(
        "--labels", type=Path, metavar="FILE.npy", help="class numbers of all rows, for --top1-target"
    )
    parser.add_argument(
        "--calibration-cache",
        type=Path,
        metavar="FILE",
        help="keep measured ranges here, and take them from here for the same model and data",
    )
    _add_work(parser)
    _add_results(parser)
    command_line.add_code_option(parser)
    command_line.add_output_options(parser)
    return parser


def _add_rule(parser: argparse.ArgumentParser) -> None:
    """Add options that take the place of keys; what is not given on the command line stays None."""
    parser.add_argument(
        "--target",
        action="append",
        metavar="FORMAT",
        help="format that layers may get, such as bfp16 or int8/int4 (activation/weight); repeatable",
    )
    for part in ("activation", "weight"):
        parser.add_argument(f"--{part}-target", metavar="FORMAT", help=f"the same, of the {part} alone")
    parser.add_argument("--target-op-type", nargs="+", metavar="OP", help="layers of these operators alone")
    for what in ("include", "exclude"):
        parser.add_argument(
            f"--{what}-node", action="append", metavar="GLOB", help=f"layers to {what} by name; repeatable"
        )
    for name, (read, text) in _NUMBERS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=read, metavar="X", help=text)
    parser.add_argument(
        "--bytes-target",
        type=whole(most=LARGEST),
        metavar="N",
        help="bytes of all weights, likewise; those that layers share count for each",
    )
    parser.add_argument(
        "--evaluate",
        metavar="FILE.py:FUNCTION",
        help="called with the outputs of all samples: more is better",
    )
    parser.add_argument("--strategy", choices=("speed", "quality", "budget"), help="(default: speed)")
    parser.add_argument(
        "--sensitivity",
        choices=("trace", "measured"),
        help="estimated in one pass, or each layer run by itself (default: trace)",
    )
    parser.add_argument(
        "--metric",
        choices=("l2", "sqnr", "cosine", "kl", "psnr", "top1", "evaluate"),
        help="of measured sensitivities (default: that of the target, kl for --top1-target, else sqnr)",
    )
    parser.add_argument(
        "--output-index",
        type=whole(-1),
        metavar="N",
        help="the output that counts, from 0 (default: -1, all)",
    )
    parser.add_argument(
        "--dual-quant-nodes",
        action="store_true",
        default=None,
        help="quantize tensors between layers of two formats in both",
    )
    parser.add_argument(
        "--data-size", type=whole(), metavar="N", help="measure errors on N samples (default: all)"
    )


def _add_work(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--jobs",
        type=whole(1, MOST_AT_ONCE),
        default=1,
        metavar="N",
        help="processes for --sensitivity measured (default: 1)",
    )
    parser.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="the same on a Dask cluster: tcp://host:port of its scheduler, 'local' for --jobs workers here",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="DIR",
        help="keep results here as they arrive, and go on from those of the same model, data and options",
    )


def _add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--analyze-only", action="store_true", help="find sensitivities, write no model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the sensitivities as JSON")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the sensitivities as CSV")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="draw sensitivities as bars, .png or .svg")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw bits against error, .png or .svg")


if __name__ == "__main__":
    sys.exit(main())

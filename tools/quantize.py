"""Quantize a float ONNX model to any number format: ``python -m tools.quantize --help``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.cli import command_line
from tools.cli.command_line import Parser
from tools.cli.data_options import SAMPLES_HELP, add_data_options
from tools.cli.job_options import QuantizeJob
from tools.cli.needs import DATA, Need
from tools.cli.option_values import whole

_EPILOG = f"""\
presets (activation and weight):
  A8W8 A16W8                    symmetric integers, Concats on one scale
  U8S8 U16S8                    asymmetric activations: mostly better, if the target supports them
  W4A8                          int8 activations, int4 weights with a scale per channel
  BF16 FP16                     every value in bfloat16 or float16
  BFP16 MX4 MX6 MX9             block floating point, Microexponents
  MXINT8 MXFP8E4M3 MXFP8E5M2 MXFP6E3M2 MXFP6E2M3 MXFP4E2M1       OCP Microscaling
  BF16_BFP16 BF16_MXINT8        everything in bfloat16, weights of dot products in blocks
  BF16_MIXED_BFP16 BF16_MIXED_MXINT8     bfloat16, dot products in blocks
  S16S8_MIXED_S8S8              A16W8, layers in A8W8 as long as SQNR falls by at most 3 dB
  INT32 UINT32                  for experiments
  NAME_ADAQUANT NAME_ADAROUND   the same, weights tuned on the samples; not of 32 bits, and
                                NAME_ADAROUND only of A8W8 A16W8 U8S8 U16S8 W4A8

A file begins with preset = "NAME", or gives activation and weight; --print-config shows all keys. Its tables
[layers] (node name, glob or operator type) and [tensors] give single layers and tensors other formats,
[finetune] tunes the weights afterwards, as tools.finetune does; [auto_mixed_precision] gives layers cheaper
formats as far as a target allows, as tools.auto_mixed_precision does. Its key evaluate names a Python file
that is run: announced on stderr, and refused outside the scheme's folder without --allow-code.

quantized values: integers reach dot products (Conv, ConvTranspose, Gemm, MatMul) and the sums, products,
activations, pools and Concats around them, but not the inside of normalizations and Softmax, masks, or
arithmetic on shapes; block formats reach the operands of dot products; bfloat16 and float16 reach every
value. --set quantize_all_op_types=true lets every format reach every value.

{SAMPLES_HELP}

exit codes: 0 done; 1 error in the model, the data or the machine; 2 usage.
"""

_RUN = Need("--input and --output", lambda job: job.input)
_ANY_DATA = Need("--data or --random-data", lambda job: job.data is not None or job.random_data)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code: 0 done, 1 model or data error, 2 usage error."""
    return command_line.run(_parser(), QuantizeJob, _work, argv, why_not=_why_not)


def _work(job: QuantizeJob) -> None:
    command_line.keep_products_on_one_thread()
    from tools.jobs import quantize

    quantize.quantize_file(job)


def _why_not(job: QuantizeJob) -> str | None:
    if not job.print_config and not (job.input and job.output):
        return "the following arguments are required: --input, --output"
    if bool(job.input) != bool(job.output):
        return "--input and --output go together"
    if job.data is not None and job.random_data:
        return "--random-data and --data do not go together"
    return None


def _parser() -> Parser:
    parser = command_line.make_parser("quantize", "Quantize a float ONNX model.", _EPILOG)
    parser.add_argument(
        "--input", default="", metavar="MODEL", help="the float32 or float16 model; never changed"
    )
    parser.add_argument("--output", default="", metavar="MODEL", help="the quantized model to write")
    parser.add_argument("--config", required=True, metavar="NAME|FILE", help="a preset or a TOML file")
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print the full scheme in use as TOML; without --input, only that",
    )
    _add_scheme_options(parser)
    add_data_options(
        parser,
        aliases=["--calibration-data"],
        required=False,
        help="folder of samples to measure ranges on",
        needs=(_RUN,),
        of_samples=(_RUN, DATA),
        of_run=(_RUN, _ANY_DATA),
    )
    parser.add_argument(
        "--calibration-cache",
        type=Path,
        needs=(_RUN, DATA),
        metavar="FILE",
        help="store measured ranges in this file, and reuse them for the same model and data",
    )
    parser.add_argument(
        "--random-data",
        type=whole(),
        metavar="N",
        needs=(_RUN,),
        help="measure ranges on N random samples: for experiments, the result is not accurate",
    )
    command_line.add_code_option(parser, needs=(_RUN,))
    command_line.add_output_options(parser, needs=(_RUN,), force=(_RUN,))
    return parser


def _add_scheme_options(parser: Parser) -> None:
    """Add options in place of keys of the scheme; options that are not given stay None."""
    parser.add_argument(
        "--set",
        dest="assignments",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help='any key of the scheme with a TOML value, such as calibrate_method="MSE"; repeatable',
    )
    parser.add_argument(
        "--per-channel",
        action=argparse.BooleanOptionalAction,
        help="whether weights have a scale per output channel; presets choose it if needed",
    )
    parser.add_argument(
        "--calibrate-method",
        choices=("MinMax", "Entropy", "Percentile", "MSE"),
        help="how ranges of activations are found (default: as in the config)",
    )
    parser.add_argument(
        "--exclude-node",
        dest="exclude_nodes",
        action="append",
        metavar="GLOB",
        help="keep nodes in float by name; repeatable",
    )
    parser.add_argument(
        "--exclude-op",
        dest="exclude_op_types",
        action="append",
        metavar="OP",
        help="keep an operator type in float; repeatable",
    )
    parser.add_argument(
        "--keep-weight-nodes",
        action="store_true",
        default=None,
        help="store float weights with nodes that round them in every run, for backends that require it",
    )
    parser.add_argument(
        "--no-optimize",
        dest="optimize",
        action="store_false",
        default=None,
        help="skip graph optimization and fusion",
    )
    parser.add_argument(
        "--domain",
        choices=("ai.onnx.contrib", "com.amd.quark"),
        help="domain of our operators (default: ai.onnx.contrib)",
    )
    parser.add_argument(
        "--qdq-domain",
        choices=("", "com.microsoft"),
        help="domain of QuantizeLinear and DequantizeLinear: ONNX's own (default), or one for old opsets",
    )


if __name__ == "__main__":
    sys.exit(main())

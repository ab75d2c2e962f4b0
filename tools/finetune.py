"""Restore the accuracy of a quantized ONNX model: ``python -m tools.finetune --help``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tools.cli import command_line
from tools.cli.command_line import Parser
from tools.cli.data_options import SAMPLES_HELP, add_data_options
from tools.cli.job_options import FinetuneJob
from tools.cli.needs import Need
from tools.cli.option_values import LARGEST, bytes_of, number, whole

_ALGORITHMS = ("auto", "gptq", "coordinate_descent", "adaquant", "adaround")
_OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_DEVICES = ("cpu", "cuda:0")

_STEPPED = Need("--algorithm adaquant or adaround", lambda job: job.algorithm in ("adaquant", "adaround"))

_EPILOG = f"""\
algorithms:
  auto                 best in measurements: weights compensate for quantized inputs, as far as held-out
                       samples confirm, rounded by gptq and coordinate descent; new scales and exponents
  gptq                 rounds one input after another, the rest compensates (arXiv 2210.17323, 2505.11695)
  coordinate_descent   the best grid value of one weight after another (arXiv 2309.01885, 2403.07134)
  adaquant             gradient steps through the rounding (arXiv 2006.10518)
  adaround             rounding up or down, learned (arXiv 2004.10568)

Every fifth sample is held out: a layer's new weights, and finally the whole model, are kept only if they are
better on those samples; with fewer than twenty samples that can be chance. All layers with a stored weight in
a number format are tuned, together with their biases.

{SAMPLES_HELP}

exit codes: 0 done; 1 error in the models, the data or the machine; 2 usage.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code: 0 done, 1 model or data error, 2 usage error."""
    return command_line.run(_parser(), FinetuneJob, _work, argv, why_not=_why_not)


def _work(job: FinetuneJob) -> None:
    command_line.keep_products_on_one_thread()
    from tools.jobs import finetune

    finetune.finetune_file(job)


def _why_not(job: FinetuneJob) -> str | None:
    if {"provider", "infer_device"} <= job.given.keys():
        return "--provider and --infer-device both select a device: give one of them"
    return None


def _parser() -> Parser:
    parser = command_line.make_parser("finetune", "Tune the weights of a quantized ONNX model.", _EPILOG)
    parser.add_argument(
        "--float", dest="float_model", required=True, metavar="MODEL", help="the float model; never changed"
    )
    parser.add_argument(
        "--quantized", required=True, metavar="MODEL", help="the quantized model; never changed"
    )
    parser.add_argument("--output", required=True, metavar="MODEL", help="the tuned model to write")
    add_data_options(parser, limit_aliases=["--data-size"], help="folder of samples to tune on")
    _add_algorithm(parser)
    _add_walk(parser)
    parser.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="file to resume from after an interruption"
    )
    command_line.add_output_options(parser)
    return parser


def _add_algorithm(parser: Parser) -> None:
    parser.add_argument("--algorithm", choices=_ALGORITHMS, default="auto", help="(default: auto)")
    parser.add_argument(
        "--num-iterations",
        type=whole(),
        metavar="N",
        needs=(_STEPPED,),
        help="steps per layer (default: 1000)",
    )
    parser.add_argument(
        "--learning-rate",
        type=number(0, above=True),
        metavar="X",
        needs=(_STEPPED,),
        help="in steps of the grid (default: the algorithm's)",
    )
    parser.add_argument(
        "--early-stop", action="store_true", needs=(_STEPPED,), help="stop a layer when steps no longer help"
    )
    parser.add_argument(
        "--fixed-seed",
        type=whole(0, LARGEST),
        default=0,
        metavar="N",
        help="seed for the choice of sample rows",
    )
    parser.add_argument(
        "--batch-size",
        type=whole(),
        default=1,
        metavar="N",
        help="samples per run, if batch sizes are dynamic",
    )


def _add_walk(parser: Parser) -> None:
    parser.add_argument(
        "--target-op-type",
        nargs="+",
        choices=_OPERATORS,
        default=(),
        metavar="OP",
        help=f"tune only layers of these operators, of {', '.join(_OPERATORS)}",
    )
    parser.add_argument(
        "--selective-update",
        action="store_true",
        help="keep a layer only if the outputs of the model improve, too; slower",
    )
    parser.add_argument(
        "--following-relu",
        action="store_true",
        help="ignore errors that a Relu or Clip after the layer cuts off",
    )
    parser.add_argument(
        "--output-index",
        type=whole(0),
        metavar="N",
        help="index of the output to tune for, from 0 (default: all)",
    )
    parser.add_argument("--optim-device", choices=_DEVICES, default="cpu", help="for linear algebra (CuPy)")
    parser.add_argument("--infer-device", choices=_DEVICES, default="cpu", help="for inference")
    parser.add_argument(
        "--memory-limit",
        type=bytes_of,
        metavar="SIZE",
        help="memory for tensors between layers, such as 500M or 4G; the rest goes to files",
    )


if __name__ == "__main__":
    sys.exit(main())

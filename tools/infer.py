"""Run a model on samples and save its outputs: ``python -m tools.infer --help``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.cli.command_line import Command, make_parser, run
from tools.cli.job_options import SAMPLES_HELP, DataOptions, samples_folder
from tools.cli.option_values import whole
from tools.cli.options import option
from transforms.files.output_file import GENERATED

_COMMANDS = """\
--input m.onnx --data samples --output results
--input m.onnx --data images --output results --std 255 --image-size 224
--input q.onnx --data samples --output results --time m.onnx"""

_DETAILS = f"""\
Outputs are saved as .npy files for `python -m tools.evaluate`: one file per sample in the output folder, or
in one sub-folder per output if there are several. The operators of this package are registered. Bfloat16
nodes for which the provider has no kernels (ONNX Runtime's CPU provider has hardly any) run in float32
between Casts that are added in memory; the tool says so, and the model's file stays as it is.

--time runs both models in one process, warm and in turns, and prints the processor's time of an inference, on
one thread unless --threads says more, and how much faster one is, with quartiles; on other devices than CPUs
it is the time on the wall. The peak memory is that of each in a process of its own.

{SAMPLES_HELP}
"""


@dataclass(frozen=True, kw_only=True)
class InferJob(DataOptions):
    """A run of a model on samples."""

    input: Path = option("--input --model M.onnx", "model to run", required=True, type=Path)
    output: Path = option("--output --output_dir DIR", "folder to save results in", required=True, type=Path)
    data: Path = samples_folder(required=True)
    time: Path | None = option(
        "--time FLOAT.onnx", "compare time and memory with this model on the same samples", type=Path
    )
    output_names: tuple[str, ...] = option(
        "--output-names NAME", "save only these outputs; repeatable", nargs="+", action="extend", default=[]
    )
    generate: int = option(
        "--generate N",
        f"save N tokens that a language model generates after each sample, in {GENERATED}; outputs only by "
        "--output-names",
        type=whole(),
        default=0,
    )
    force: bool = option("--force", "write into an output folder that is not empty")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    return run(command(), _infer, argv)


def command() -> Command[InferJob]:
    """Return the command line of the tool."""
    return Command(make_parser("infer", InferJob, __doc__, _COMMANDS, _DETAILS), InferJob)


def _infer(job: InferJob) -> None:
    import onnx_narrow
    from tools.cli.printed import Printed

    onnx_narrow.infer(
        job.input, job.output, **job.keywords("input", "output"), progress=Printed(verbose=job.verbose)
    )


if __name__ == "__main__":
    sys.exit(main())

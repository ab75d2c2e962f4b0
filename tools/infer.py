"""Run a model on samples and save its outputs: ``python -m tools.infer --help``."""

from __future__ import annotations

import sys

from tools.cli.command_line import Tool
from tools.cli.shared_help import SAMPLES_HELP

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


main = Tool("infer", "infer", __doc__, _COMMANDS, _DETAILS)
"""Run the tool and return its exit code."""


if __name__ == "__main__":
    sys.exit(main())

"""Show where a quantized model differs from its float model: ``python -m tools.report --help``."""

from __future__ import annotations

import sys

from tools.cli.command_line import Tool
from tools.cli.shared_help import SAMPLES_HELP

_COMMANDS = """\
--float m.onnx --quantized q.onnx --data samples --output report.html
--float m.onnx --quantized q.onnx --data samples --output report.html --limit 10
--float m.onnx --quantized q.onnx --data images --std 255 --output report.html"""

_DETAILS = f"""\
Both models run on the samples. First on the page is where the loss begins: each layer is quantized alone, in
the float model, those in front on more samples, and those of most error are put back to float together,
until half of the error of an output goes with them; for these there is a cause, and what helps as a command
to copy, with its price in bytes. --json and --csv write the same, of every layer. The page is one
self-contained HTML file: a description of both models, the differences of the results, SQNR of every layer
(activations and weights separately), histograms of the worst tensors against their quantized grid, time and
memory. Layers are matched by the names of their tensors, across the Casts and other nodes that the tools of
this package insert; tensors that a fusion removed are listed. Memory does not grow with the samples.

{SAMPLES_HELP}
"""


main = Tool("report", "report", __doc__, _COMMANDS, _DETAILS)
"""Run the tool and return its exit code."""


if __name__ == "__main__":
    sys.exit(main())

"""Tune the weights of a quantized ONNX model: ``python -m tools.finetune --help``."""

from __future__ import annotations

import sys

from tools.cli.calls import call_on_one_thread
from tools.cli.command_line import Tool
from tools.cli.shared_help import GATE_HELP, SAMPLES_HELP

_COMMANDS = """\
--float m.onnx --quantized q.onnx --output tuned.onnx --data samples
--float m.onnx --quantized q.onnx --output tuned.onnx --data samples --jobs 4
--float m.onnx --quantized q.onnx --output tuned.onnx --data samples --selective-update"""

_BRIEF = """\
algorithms:
  auto                 best in measurements: weights compensate for quantized inputs, as far as
                       held-out samples confirm, rounded by gptq and coordinate descent, and
                       integers in layers that are not large by adaround, too; new scales and
                       exponents
  gptq                 rounds one input after another, the rest compensates (arXiv 2210.17323,
                       2505.11695)
  coordinate_descent   the best grid value of one weight after another (arXiv 2309.01885,
                       2403.07134)
  adaquant             gradient steps through the rounding, from gptq's result (arXiv 2006.10518)
  adaround             rounding up or down, learned, on the grid of gptq's result (arXiv 2004.10568)"""

_DETAILS = f"""\
Every fifth sample is held out: a layer's new weights are kept only if they are better there, and the whole
model only if its outputs gain more there than the standard error of that gain, and none regresses by more
than 0.5 dB or its own standard error. Where one does, layers are put back by halves. A model whose outputs
are inputs with the next sample is judged with states of its own. At first auto lets int8 tensors after a Relu
use the full range if biases can take the shift. All layers with a stored weight in a number format are tuned,
together with their biases.

{GATE_HELP}

{SAMPLES_HELP}

exit codes: 0 done; 1 error in the models, the data or the machine; 2 usage; 3 no layer to tune, or
--metric is not met: no file is written.
"""


main = Tool("finetune", "finetune", __doc__, _COMMANDS, _DETAILS, _BRIEF, call_on_one_thread)
"""Run the tool and return its exit code: 0 done, 1 model or data error, 2 usage error."""


if __name__ == "__main__":
    sys.exit(main())

"""Check a model against the rules of a deployment target: ``python -m tools.check --help``."""

from __future__ import annotations

import sys

from tools.cli import command_line
from tools.cli.calls import call
from tools.cli.command_line import Tool
from tools.cli.job import Job

_COMMANDS = """\
--target ort-cpu q.onnx
--target tensorrt --input q.onnx
--target ryzen-ai-cnn --input q.onnx"""

_DETAILS = """\
Prints which nodes the target computes in low precision, which not and why, and each rule of it that the model
breaks: types, zero points, scales, opset, free dimensions. What is known of a target comes from public
documents, which --target NAME prints with it. Nothing is timed: tools.infer --time does that.

exit codes: 0 the model fits; 1 error in the model or the machine; 2 usage; 3 it breaks a rule of the target.
"""


def _check(job: Job) -> int:
    return command_line.NOTHING_DONE if call(job) else command_line.DONE


main = Tool("check", "check", __doc__, _COMMANDS, _DETAILS, work=_check)
"""Run the tool and return its exit code: 0 the model fits, 1 model error, 2 usage, 3 it breaks a rule."""


if __name__ == "__main__":
    sys.exit(main())

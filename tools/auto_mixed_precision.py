"""Give layers cheaper formats as far as accuracy allows: ``python -m tools.auto_mixed_precision --help``."""

from __future__ import annotations

import sys

from tools.cli.calls import call_on_one_thread
from tools.cli.command_line import Tool
from tools.cli.job import Job
from tools.cli.schemes import why_no_scheme
from tools.cli.shared_help import GATE_HELP, SAMPLES_HELP

_COMMANDS = """\
--input m.onnx --output q.onnx --config S16S8_MIXED_S8S8 --data samples
--input m.onnx --output q.onnx --config BF16 --target mx6 --sqnr-target 30 --data samples
--input m.onnx --analyze-only --config BF16 --target mx6 --data samples --chart c.svg"""

_DETAILS = f"""\
The scheme of --config is the baseline, its table [auto_mixed_precision] sets which formats layers may get and
the target for the outputs; the options below replace keys of that table. Presets that have it:
BF16_MIXED_BFP16, BF16_MIXED_MXINT8, S16S8_MIXED_S8S8, and each with _ADAQUANT, which then tunes the weights
and restores them if the tuned model would miss the target.
Only one target applies: an option here replaces the target of the table.

The key evaluate of the table names a Python file that is run: announced on stderr, and refused outside the
folder of the scheme without --allow-code. --evaluate on the command line is always allowed.

method: ranges are measured once for all formats. Layers are moved in the order of rising error per bit saved:
as many as --bits-target or --size needs, else all of them; those with which the target is missed are moved
back. Each model tried is built and run, and judged by its actual outputs. With a budget and no target,
weights of few bits are fitted to outputs of their layers. Layers that can move are Conv, ConvTranspose, Gemm
and MatMul outside of If, Loop and Scan which the scheme neither excludes nor gives formats of their own.

{GATE_HELP}

{SAMPLES_HELP}

exit codes: 0 done; 1 error in the model, the data or the machine; 2 usage; 3 no layer to move, or the
target or --metric is not met: no file is written.
"""


def _why_not(job: Job) -> str | None:
    if reason := why_no_scheme(job, runtime="RUNTIME"):
        return reason
    if bool(job.get("output")) == job.get("analyze_only", False):
        return "give one of --output and --analyze-only, and only one"
    return None


main = Tool(
    *("auto_mixed_precision", "mix_precision", __doc__, _COMMANDS, _DETAILS),
    work=call_on_one_thread,
    why_not=_why_not,
)
"""Run the tool and return its exit code: 0 done, 1 model or data error, 2 usage error."""


if __name__ == "__main__":
    sys.exit(main())

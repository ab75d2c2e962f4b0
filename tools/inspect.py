"""Say what an ONNX model is, how it is stored and what it needs: ``python -m tools.inspect --help``."""

from __future__ import annotations

import json
import sys

from tools.cli.command_line import Tool
from tools.cli.job import Job

_COMMANDS = """\
m.onnx
m.onnx --layers --tensors
m.onnx --against q.onnx"""

_DETAILS = """\
Any ONNX model, of any size: weights stay in their files, and are looked at one at a time to find the block
format of float32 numbers; external data may be missing.

weights: "mx6 in codes" are in their true bits (--storage packed), "mx6 as float32" are numbers of MX6 in 32
bits each. Computed tensors are those that are rounded to a format, in it, and float tensors that something
else than a rounding reads; of a size that is not fixed in the model, 1 is taken.

--layers and --tensors print only these lists, the nodes in bodies of If, Loop and Scan included. A node
without a name goes by that of its first output, here as in --exclude-node and in schemes. The type of a
computed input of a node stands where it is computed.

--grids reads the weights of products and embeddings, and prints only which of them lie on a grid already:
integers, or 8-bit floats, times a scale for each block or channel. tools.quantize --config FOUND stores them
so.

Runs on: whether ONNX Runtime, as it is installed here, opens the model with its CPU provider, and with its
CUDA provider if it has one, with our operators registered. Nothing is computed.
"""


def _inspect(job: Job) -> None:
    import onnx_narrow
    from tools.cli.printed import Printed
    from transforms.run.events import SILENT

    is_json = job.get("json", False)
    content = onnx_narrow.inspect(**job.keywords(), progress=SILENT if is_json else Printed())
    if is_json:
        print(json.dumps(content, indent=2, ensure_ascii=False))


main = Tool("inspect", "inspect", __doc__, _COMMANDS, _DETAILS, work=_inspect)
"""Run the tool and return its exit code: 0 done, 1 model error, 2 usage error."""

if __name__ == "__main__":
    sys.exit(main())

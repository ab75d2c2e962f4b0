"""Command-line tools, one script per job: ``python -m tools`` lists them, ``python -m tools.NAME --help``."""

import os
import sys

try:
    import onnx_narrow  # noqa: F401  another package of the name of one of ours is an error from here on
except ImportError as error:
    if sys.argv[:1] != ["-m"]:
        raise
    os.write(2, f"tools: error: {error}\n".encode())
    os._exit(1)

if sys.argv[:1] == ["-m"]:  # what Python says while it looks for the module that it runs
    try:
        from tools.cli import interrupts, streams

        if interrupts.take_signals():
            streams.repair()
    except KeyboardInterrupt:
        os.write(2, b"tools: error: interrupted\n")
        os._exit(130)

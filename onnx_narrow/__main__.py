"""The command ``onnx-narrow``: ``onnx-narrow quantize ...`` runs the tool of that name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import onnx_narrow
from tools import __main__ as listing


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool that the first word names, and return its exit code; 2 for an unknown tool."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words == ["--version"]:
        sys.stdout.write(f"onnx-narrow {onnx_narrow.__version__}\n")
        return 0
    name = words[0].replace("-", "_") if words and not words[0].startswith("-") else ""
    if name not in listing.names():
        return listing.main(words, program="onnx-narrow", runs="onnx-narrow NAME")
    _begin(name)
    return int(importlib.import_module(f"{listing.__package__}.{name}").main(words[1:]))


def _begin(name: str) -> None:
    """Handle signals as a tool does from its start."""
    from tools.cli import interrupts, streams

    if interrupts.take_signals(f"onnx-narrow {name}"):
        streams.repair()


if __name__ == "__main__":
    sys.exit(main())

"""List the tools: ``python -m tools``."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.cli import streams
from tools.cli.command_line import purpose_of


def main(argv: Sequence[str]) -> int:
    """Print a line for each tool, its name and what it is for; return 2 if there is more than that to do."""
    if argv and argv[0] not in ("-h", "--help"):
        words = f"'{argv[0]}' has no meaning here: python -m tools.NAME runs a tool"
        print(f"tools: error: {words}", file=sys.stderr)
        return 2
    lines = ["python -m tools.NAME --help says how to use each of these:", "", *map(_line, names())]
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:  # the reader has seen enough
        streams.drop_unwritable()
    return 0


def _line(name: str) -> str:
    path = Path(__file__).with_name(f"{name}.py")
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return f"  {name:<22}{purpose_of(docstring)}"


def names() -> list[str]:
    """Return the names of the tools."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

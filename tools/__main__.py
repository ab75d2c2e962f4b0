"""List the tools: ``python -m tools``."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.cli import streams
from tools.cli.command_line import purpose_of


def main(argv: Sequence[str], *, program: str = "tools", runs: str = "python -m tools.NAME") -> int:
    """Print a line for each tool, its name and purpose; return 2 for any argument but help.

    ``program``: the name that an error begins with; ``runs``: how a tool is run.
    """
    if argv and argv[0] not in ("-h", "--help"):
        print(f"{program}: error: {_why_not(argv[0])}: {runs} runs a tool", file=sys.stderr)
        return 2
    lines = [f"{runs} --help says how to use each of these:", "", *map(_line, names())]
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:  # the reader closed the pipe
        streams.drop_unwritable()
    return 0


def _why_not(word: str) -> str:
    from ops.legal_names import did_you_mean  # ops needs time to import

    if word in names():
        return f"'{word}' has no meaning here"
    return f"'{word}' is not the name of a tool{did_you_mean(word.replace('-', '_'), names())}"


def _line(name: str) -> str:
    path = Path(__file__).with_name(f"{name}.py")
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return f"  {name:<22}{purpose_of(docstring)}"


def names() -> list[str]:
    """Return the names of the tools."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

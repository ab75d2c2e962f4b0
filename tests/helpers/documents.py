"""The documents of the project, and what stands in them: code blocks with what they print, links, names.

Kinds of blocks, by the words after the three backticks:

====================  ======================================================================================
``bash``, ``python``  executed, in the order of the document, in a folder with ``examples`` and
                      ``tests/examples``; each command and each block of Python is a process of its own
``bash fails``        the same, and every command has to fail
``python``, ``toml``  with a first line ``# NAME.py`` or ``# NAME.toml``: written to this file, not executed
``toml``              read as a scheme
``text``              directly after an executed block: what that one prints to stdout (of one that fails, to
                      stderr after it). A line ``...`` stands for any number of lines; numbers before s, ms,
                      kB, MB/s and GB/s are not compared, nor are spaces at the end of a line
``text drawing``      a drawing; ``mermaid`` too
``console``           commands that take long, or change the machine: modules and options have to exist
``cpp``, ``csharp``   not executed; brackets have to close, and C++ to compile where the headers are
====================  ======================================================================================

Commands in cells of tables, code that begins with ``python -m tools.``, are executed as well, between the
blocks around the table, unless they have NAME in them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_PLACES = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md"),
    *("docs/*.md", "docs/reference/*.md", "tests/README.md"),
)
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for place in _PLACES for path in ROOT.glob(place))

KINDS = {
    *("bash", "bash fails", "python", "toml", "text", "text drawing"),
    *("mermaid", "console", "cpp", "csharp"),
}
_BLOCK = re.compile(r"^```(.*)\n((?:(?!```).*\n)*)```$", re.MULTILINE)
_OF_THIS_MACHINE = ("Time here: ", "Slower: ")
_TIME = re.compile(r"\d+(?:\.\d+)?(?= (?:s|ms|kB|[MG]B/s|times as long)\b)")


@dataclass(frozen=True)
class Block:
    """A code block: its kind, its text, the line that it starts in, and what it prints if that is shown."""

    kind: str
    code: str
    line: int
    prints: Block | None = None

    @property
    def file(self) -> str | None:
        """The file that the block is written to, or None."""
        name = re.match(r"# ([\w/]+\.(?:py|toml))\n", self.code)
        return name[1] if name and self.kind in ("python", "toml") else None

    @property
    def is_executed(self) -> bool:
        """Whether the block is run."""
        return self.kind in ("bash", "bash fails", "python") and not self.file


GUIDES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))
"""The pages that have a limit of words each; measurements are no guide."""
GUIDES.remove("docs/measurements.md")

_CELL = re.compile(r"(?<!`)`(python -m tools\.[^`]+)`")


def read(document: str) -> str:
    """Return the text of a document, by its path from the root of the project."""
    return (ROOT / document).read_text(encoding="utf-8")


@cache
def blocks(document: str) -> tuple[Block, ...]:
    """Return the blocks of a document in their order; what one prints is part of it, and no block itself."""
    text = read(document)
    found: list[Block] = []
    end = -1
    for match in _BLOCK.finditer(text):
        block = Block(match[1].strip(), match[2], text.count("\n", 0, match.start()) + 1)
        if block.kind == "text" and found and not text[end : match.start()].strip():
            found[-1] = Block(found[-1].kind, found[-1].code, found[-1].line, block)
        else:
            found.append(block)
        end = match.end()
    return tuple(found)


def steps(document: str) -> list[Block]:
    """Return what is written to files and executed, in order: blocks, and commands in cells of tables."""
    cells = [
        Block("bash", command + "\n", number)
        for number, line in enumerate(read(document).splitlines(), 1)
        for command in _CELL.findall(line)
        if line.startswith("|") and "NAME" not in command
    ]
    return sorted([*blocks(document), *cells], key=lambda block: block.line)


def prose(document: str) -> str:
    """Return a document without its blocks."""
    return _BLOCK.sub("", read(document))


def agree(shown: str, printed: str) -> bool:
    """Return whether what a document shows is what was printed, see the table above."""
    pattern = ""
    for line in _lines(shown):
        pattern += r"(?:.*\n)*" if line == "..." else re.escape(line + "\n")
    return re.fullmatch(pattern, "".join(line + "\n" for line in _lines(printed))) is not None


def _lines(text: str) -> list[str]:
    """Return the lines that have to agree, without times, and without those that say what is slow here."""
    lines = [line for line in text.strip("\n").splitlines() if not line.startswith(_OF_THIS_MACHINE)]
    return [_TIME.sub("#", line.rstrip()) for line in lines]


def slugs(document: str) -> set[str]:
    """Return the anchors that the headings of a document get on GitHub."""
    heads = re.findall(r"^#+ (.*)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}

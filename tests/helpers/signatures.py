"""Signatures of the functions of ``onnx_narrow`` by the table of options: ``... tests.helpers.signatures``.

Without ``--update`` the command names the functions that differ from the table, and ends with 1 if any does.
``--update`` writes keywords with types and defaults, and adds those that a docstring does not name to it.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import textwrap
from importlib import import_module
from pathlib import Path

from onnx_narrow.options import JOBS, keywords
from onnx_narrow.options.kinds import REQUIRED
from onnx_narrow.options.option import Option
from transforms.files.spelling import spelled

FUNCTIONS = [job for job in JOBS if keywords(job)]
COMMAND = "python -m tests.helpers.signatures --update"
_REFERS = "Keywords that are not described here are those of :func:`onnx_narrow.quantize`."
_WIDTH = 106


def source_of(job: str) -> Path:
    """Return the file of a function."""
    return Path(import_module(f"onnx_narrow.api.{job}").__file__ or "")


def updated(job: str) -> str:
    """Return the text of the file of a function with all keywords of the table."""
    text = source_of(job).read_text(encoding="utf-8")
    return _with_words(_with_keywords(text, job), job)


def _function(text: str, job: str) -> ast.FunctionDef:
    found = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == job)
    return next(found)


def _with_keywords(text: str, job: str) -> str:
    arguments, lines = _function(text, job).args, text.splitlines()
    placed = {one.arg for one in arguments.args}
    first, last = arguments.kwonlyargs[0], arguments.kw_defaults[-1] or arguments.kwonlyargs[-1]
    if first.lineno == last.lineno:
        return text  # one keyword, on the line of the function
    wanted = [f"    {_parameter(row)}," for name, row in keywords(job).items() if name not in placed]
    return "\n".join([*lines[: first.lineno - 1], *wanted, *lines[last.end_lineno or 0 :]]) + "\n"


def _parameter(row: Option) -> str:
    default = row.kind.default
    if default is REQUIRED:
        return f"{row.name}: {row.kind.annotation}"
    optional = " | None" if default is None else ""
    return f"{row.name}: {row.kind.annotation}{optional} = {_literal(default)}"


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _with_words(text: str, job: str) -> str:
    function = _function(text, job)
    told = described(job, text)
    missing = [row for name, row in keywords(job).items() if name not in told]
    docstring, lines = function.body[0], text.splitlines()
    after = next(
        place
        for place in range(docstring.lineno, docstring.end_lineno or 0)
        if lines[place].strip() in ("Returns", "Raises")
    )
    return "\n".join([*lines[: after - 1], *map(_entry, missing), *lines[after - 1 :]]) + "\n"


def _entry(row: Option) -> str:
    words = re.sub(r"\{(\w+)\}", r"``\1``", row.help)
    words = spelled(words[:1].upper() + words[1:]) + "."
    body = textwrap.fill(words, _WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return f"    {row.name} : {row.kind.annotation}\n{body}"


def described(job: str, text: str = "") -> set[str]:
    """Return the parameters that the docstring of a function names, or those that it refers to do."""
    docstring = ast.get_docstring(_function(text or source_of(job).read_text(encoding="utf-8"), job)) or ""
    section = re.split(r"^(?:Returns|Raises)$", docstring, flags=re.MULTILINE)[0].partition("Parameters\n")[2]
    heads = re.findall(r"^(\w[\w, ]*?)(?: : .*)?$", section, re.MULTILINE)
    own = {name for head in heads for name in head.split(", ")}
    return own | described("quantize") if _REFERS in docstring else own


def stale() -> list[str]:
    """Return the functions that differ from the table."""
    return [job for job in FUNCTIONS if updated(job) != source_of(job).read_text(encoding="utf-8")]


def main() -> int:
    """Compare or write the signatures of all functions."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--update", action="store_true")
    update = parser.parse_args().update
    differing = stale()
    for job in differing:
        if update:
            source_of(job).write_text(updated(job), encoding="utf-8")
        else:
            print(f"onnx_narrow.{job}: run {COMMAND}")
    return int(bool(differing) and not update)


if __name__ == "__main__":
    sys.exit(main())

"""Docstrings of the code as Markdown, for the reference."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import onnx_narrow
import transforms
from onnx_narrow.options import JOBS, keywords
from tests.helpers.tool_parsers import REQUIRED, parser_of

_SECTION = re.compile(r"^(\w+)\n-+\n", re.MULTILINE)
_SKIPPED = ("Examples",)  # they run as doctests


def function(name: str) -> str:
    """Return a public name of ``onnx_narrow``: its signature and what its docstring says.

    Keywords that are options are on their page.
    """
    text = described(getattr(onnx_narrow, name), f"onnx_narrow.{name}")
    if not (name in JOBS and keywords(name)):
        return text
    tool = max(tool for tool in REQUIRED if parser_of(tool).job == name)
    text = text.replace("Keywords that are not described here are those of `onnx_narrow.quantize`.\n\n", "")
    link = f"Keywords: [options of several](options.md#options-of-several), [its own](options.md#{tool})."
    return re.sub(r"\*\*Parameters\*\*.*?(?=\n\n\*\*)", link, text, count=1, flags=re.DOTALL)


def rewrite(name: str) -> str:
    """Return a rewrite at the top of ``transforms``: its place, its signature, and what it does in short."""
    folder = Path(transforms.__file__ or "").parent
    pattern = re.compile(rf"^def {name}\(|import .*\b{name}\b", re.MULTILINE)
    stems = [path.stem for path in folder.glob("*.py") if pattern.search(path.read_text(encoding="utf-8"))]
    stem = name if name in stems else min(stems)
    found = getattr(import_module(f"transforms.{stem}"), name)
    intro = (inspect.getdoc(found) or "").partition("\n\n")[0]
    return f"`transforms.{stem}.{name}{_signature(found)}`\n\n{_markdown(intro)}"


def described(what: Any, name: str) -> str:
    """Return the signature of a function or class, and its docstring, as Markdown."""
    text = inspect.getdoc(what) or ""
    intro, *sections = _SECTION.split(text)
    parts = [f"`{name}{_signature(what)}`", _markdown(intro)]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        if title not in _SKIPPED:
            parts.append(f"**{title}**\n\n{_items(body)}")
    return "\n\n".join(part.strip() for part in parts)


def _signature(what: Any) -> str:
    parameters = inspect.signature(what).parameters.values()
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in parameters]
    return str(inspect.Signature(bare)).replace("<factory>", "...")


def _items(body: str) -> str:
    """Return the entries of a section as a list: lines at the margin, each with the indented text below."""
    found: list[str] = []
    for line in body.strip("\n").splitlines():
        if line and not line.startswith(" "):
            name, colon, kind = line.partition(" : ")
            found.append(f"* `{name}`" + (f" ({kind})" if colon else ""))
        elif line.strip():
            found[-1] += f" {line.strip()}"
    return _markdown("\n".join(found))


def _markdown(text: str) -> str:
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    return re.sub(r"::$", ":", text, flags=re.MULTILINE)

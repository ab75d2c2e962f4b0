"""Tables of the code as Markdown: formats, attributes, keys, presets, targets, options of the tools."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from onnx_narrow.api import listing
from ops.formats import ATTRIBUTES, FORMATS
from tests.helpers.scheme_keys import FINETUNE, MIXING, SCHEME
from tests.helpers.tool_parsers import parser_of
from transforms.scheme.finetune_rule import FinetuneRule
from transforms.scheme.mixing_rule import MixingRule
from transforms.scheme.presets import PLAIN, suffixes
from transforms.scheme.scheme import Scheme

TABLES: Mapping[str, tuple[type, Mapping[str, str]]] = {
    "scheme": (Scheme, SCHEME),
    "finetune": (FinetuneRule, FINETUNE),
    "auto_mixed_precision": (MixingRule, MIXING),
}
"""The tables of a scheme, and what is said about their keys."""


def table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table in Markdown."""
    lines = [tuple(heads)]
    lines += [("---",) * len(lines[0]), *(tuple(str(cell) for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def formats() -> str:
    """Return the number formats with bits, block, operator and attributes."""
    rows = (
        (
            f"`{name}`",
            f"{fmt.bits:g}",
            fmt.block if fmt.block > 1 else "",
            f"`{fmt.op}`",
            _values(fmt.attributes),
        )
        for name, fmt in FORMATS.items()
    )
    return table(("format", "bits", "block", "operator", "attributes"), rows)


def attributes(operator: str) -> str:
    """Return the attributes of a block operator."""
    rows = [("`axis`", "`1`", "-rank to rank - 1; ignored for rank 1")]
    for name, one in ATTRIBUTES[operator].items():
        legal = one.legal
        words = (
            f"{legal[0]} to {legal[-1]}" if isinstance(legal, range) else ", ".join(f"`{x}`" for x in legal)
        )
        words += "".join(f"; `{alias}` is `{name}`" for alias, name in one.aliases.items())
        rows.append((f"`{name}`", f"`{one.default}`", words))
    return table(("attribute", "default", "legal"), rows)


def keys(name: str) -> str:
    """Return the keys of a table of schemes, with their defaults."""
    kind, said = TABLES[name]
    rows = [(f"`{key.name}`", _default(key), said[key.name]) for key in dataclasses.fields(kind) if key.repr]
    return table(("key", "default", "meaning"), rows)


def _default(key: dataclasses.Field[Any]) -> str:
    if key.default is dataclasses.MISSING:
        return "required" if key.default_factory is dataclasses.MISSING else ""
    return "" if key.default in ((), None, "") else f"`{_toml(key.default)}`"


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key} = {_toml(value)}`" for key, value in values.items())


def presets() -> str:
    """Return the presets with the keys that they set, and which have a form that tunes."""
    rows = []
    for name, values in PLAIN.items():
        tuned = ", ".join(f"`{suffix}`" for suffix in suffixes(name))
        rows.append((f"`{name}`", _values(values), tuned))
    return table(("preset", "keys", "tuned"), rows)


def targets() -> str:
    """Return the deployment targets: what each takes, by which documents, and what was verified."""
    rows = []
    for name, one in listing.targets().items():
        formats = (", ".join(one.activations), ", ".join(one.weights))
        told = (", ".join(one.rules), f"`{one.preset}`", "; ".join(one.sources), one.verified)
        rows.append((f"`{name}`", one.runtime, *formats, *told))
    heads = ("target", "runtime", "activations", "weights", "rules", "preset", "documents", "verified")
    return table(heads, rows)


def tool(name: str) -> str:
    """Return what a tool is for, and its options by group."""
    purpose = (import_module(f"tools.{name}").__doc__ or "").splitlines()[0].partition(": ``")[0]
    parts = [f"{purpose.rstrip('.')}."]
    for group in parser_of(name)._action_groups:
        actions = [
            one for one in group._group_actions if not {"--help", "--help-all"} & {*one.option_strings}
        ]
        if actions:
            rows = ((_names(one), _words(one) + _python_name(one)) for one in actions)
            parts.append(table((group.title or "options", ""), rows))
    return "\n\n".join(parts)


def _names(action: argparse.Action) -> str:
    names = action.option_strings or [action.dest]
    value = "" if action.nargs == 0 or not action.option_strings else f" {_placeholder(action)}"
    return (
        ", ".join(f"`{name}`" for name in names[:-1]) + (", " if names[1:] else "") + f"`{names[-1]}{value}`"
    )


def _python_name(action: argparse.Action) -> str:
    """Return the name of an option in Python, if it is not the option with underscores."""
    spelled = {name.lstrip("-").replace("-", "_") for name in action.option_strings}
    return "" if action.dest in spelled or not spelled else f"; in Python `{action.dest}`"


def _placeholder(action: argparse.Action) -> str:
    if action.choices:
        return "|".join(map(str, action.choices))
    return str(action.metavar or action.dest.upper())


def _words(action: argparse.Action) -> str:
    text = " ".join((action.help or "").split()).replace("%%", "%")
    return re.sub(r"<([^>]*)>", r"\1", text)

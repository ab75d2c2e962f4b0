"""Tables of the code as Markdown: formats, attributes, keys, presets, targets, options."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from onnx_narrow.api import listing
from onnx_narrow.options import JOBS, keywords, options, shared
from onnx_narrow.options.option import Option
from ops.formats import ATTRIBUTES, FORMATS
from tests.helpers.scheme_keys import FINETUNE, MIXING, SCHEME
from tests.helpers.tool_parsers import REQUIRED, parser_of
from tools.cli.parser import Parser
from transforms.files.spelling import spelled, spelling
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
    """Return what a tool is for, and the options that it alone has."""
    purpose = (import_module(f"tools.{name}").__doc__ or "").splitlines()[0].partition(": ``")[0]
    parser = parser_of(name)
    named = {**options(parser.job), **keywords(parser.job)}.values()
    cells = [_cells(row, parser) for row in named if row not in shared.ROWS]
    return f"{purpose.rstrip('.')}.\n\n{table(('option', ''), cells)}"


def several() -> str:
    """Return the options that several jobs have, and which these are."""
    found = []
    for row in shared.ROWS:
        jobs = [job for job in JOBS if job in re.findall(r"\w+", row.jobs)]
        parser = parser_of(next(name for name in REQUIRED if parser_of(name).job in jobs))
        found.append((*_cells(row, parser), _listed(jobs)))
    return table(("option", "", "of"), found)


def _listed(jobs: list[str]) -> str:
    others = [job for job in JOBS if job not in jobs]
    if len(jobs) <= len(others):
        return ", ".join(jobs)
    return f"all but {', '.join(others)}" if others else "all"


def _cells(row: Option, parser: Parser) -> tuple[str, str]:
    """Return how an option is written, and what it is for; a name without dashes is of Python alone."""
    with spelling(parser.spell):
        words = spelled(row.help).replace(", see below", "")
        needs = " and ".join(map(str, row.needs)) if isinstance(row.needs, tuple) else ""
        words += f"; requires {needs}" if needs else ""
    jobs = row.jobs.split()
    if all(job.endswith("()") for job in jobs):
        return f"`{row.name}`", words
    value = [word for word in row.written.split() if not word.startswith("--")]
    value = value or (["|".join(map(str, row.kind.choices))] if row.kind.choices else [])
    names = ", ".join(f"`{name}`" for name in [*row.names[:-1], " ".join([row.names[-1], *value])])
    plain = [name.removeprefix("--").replace("-", "_") for name in row.names]
    if row.name in plain or all(job.startswith("--") for job in jobs):
        return names, words
    return names, f"{words}; in Python `{row.name}{'=False' if plain == [f'no_{row.name}'] else ''}`"

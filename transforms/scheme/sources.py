"""Schemes from presets, TOML files, keys, and the metadata that tools.quantize writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx_graphsurgeon as gs

from ops.legal_names import did_you_mean, unknown
from transforms.files.named_file import in_words, parse_toml, read_toml
from transforms.files.paths import AnyPath
from transforms.graph.typed import info_of
from transforms.model import provenance
from transforms.scheme.presets import PRESETS, find_preset, spellings
from transforms.scheme.scheme import Scheme, check_keys
from transforms.scheme.scheme_values import checked_value

_MEANT = {
    "INT8": "'A8W8' or 'U8S8'",
    "UINT8": "'U8S8'",
    "INT16": "'A16W8'",
    "INT4": "'W4' or 'W4A8'",
    "FP8": "'MXFP8E4M3'",
    "FP6": "'MXFP6E3M2'",
    "FP4": "'MXFP4E2M1'",
    "S8S8": "'A8W8'",
    "W8A8": "'A8W8'",
    "W8A16": "'A16W8'",
    "BFLOAT16": "'BF16'",
    "FLOAT16": "'FP16'",
}
"""Suggested presets for other common names."""


def preset(name: str) -> Scheme:
    """Return the scheme of a preset, tuned if its name ends in ``_ADAQUANT`` or ``_ADAROUND``.

    Raises ValueError for an unknown name.
    """
    keys = find_preset(name)
    if keys is None:
        raise unknown(name, spellings(name), "preset")
    return Scheme(**keys)


def scheme_of(scheme: Scheme | str) -> Scheme:
    """Return a scheme, or the preset with a name; ValueError for an unknown name, TypeError for others."""
    if isinstance(scheme, str):
        return preset(scheme)
    if not isinstance(scheme, Scheme):
        kind = type(scheme).__name__
        raise TypeError(f"a Scheme of transforms.scheme or the name of a preset is needed, not a {kind}")
    return scheme


def read_scheme(source: AnyPath) -> Scheme:
    """Return the preset with a name, or the scheme in a TOML file.

    A file may begin with ``preset = "..."`` and set only the keys that differ. Raises ValueError in one line
    that names the source, unless it is one of the two and valid.
    """
    name = os.fspath(source)
    if find_preset(name) is not None:
        return preset(name)
    path = Path(source)
    if not path.is_file():
        meant = _MEANT.get(name.upper())
        near = f", did you mean {meant}?" if meant else did_you_mean(name, spellings(name))
        words = f"'{name}' is neither a file nor one of the presets"
        raise ValueError(
            f"{words}{near} They are {', '.join(PRESETS)}" if near else f"{words} {', '.join(PRESETS)}"
        )
    try:
        return scheme_from_keys(read_toml(path))
    except Exception as error:  # numbers beyond any float, tables too deep to print
        raise ValueError(f"{path}: {in_words(error)}") from error


def scheme_from_keys(values: dict[str, Any]) -> Scheme:
    """Return the scheme of parsed TOML; ValueError for illegal keys and values."""
    start = values.pop("preset", None)
    check_keys(values, "preset")
    if start is not None:
        return preset(checked_value("preset", "str", start)).with_(**values)
    for key in ("activation", "weight"):
        if key not in values:
            raise ValueError(f"key '{key}' is missing, and there is no preset to take it from")
    return Scheme(**values)


def recorded_scheme(graph: gs.Graph) -> Scheme | None:
    """Return the scheme in a model's metadata, or None if it is missing or unreadable."""
    text = info_of(graph).metadata.get(provenance.PREFIX + "scheme")
    if text is None:
        return None
    try:
        values = parse_toml(text)
        check_keys(values)
        return Scheme(**values)
    except (ValueError, TypeError, RecursionError, OverflowError):  # TypeError: a key is missing
        return None

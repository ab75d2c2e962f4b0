"""The scheme that a model was quantized with, as tools.quantize leaves it in the metadata."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.files.named_file import parse_toml
from transforms.graph.typed import info_of
from transforms.model import provenance
from transforms.scheme.scheme import Scheme, check_keys


def recorded_scheme(graph: gs.Graph) -> Scheme | None:
    """Return the scheme in a model's metadata, or None if it is missing or cannot be read."""
    text = info_of(graph).metadata.get(provenance.PREFIX + "scheme")
    if text is None:
        return None
    try:
        values = parse_toml(text)
        check_keys(values)
        return Scheme(**values)
    except (ValueError, TypeError, RecursionError, OverflowError):  # TypeError: a key is missing
        return None

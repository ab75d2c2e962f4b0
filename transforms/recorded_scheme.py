"""The scheme that a model was quantized with, as tools.quantize leaves it in the metadata."""

from __future__ import annotations

import tomllib

import onnx_graphsurgeon as gs

from ops.formats import Format
from transforms import provenance
from transforms.scheme import Scheme, scheme_from_keys


def recorded_scheme(graph: gs.Graph) -> Scheme | None:
    """Return the scheme in a model's metadata; None where there is none, or none that can be read."""
    info = vars(graph).get("info")
    text = info.metadata.get(provenance.PREFIX + "scheme") if info is not None else None
    if text is None:
        return None
    try:
        return scheme_from_keys(tomllib.loads(text))
    except ValueError:
        return None


def formats_of(scheme: Scheme) -> list[Format]:
    """Return the formats that a scheme names anywhere."""
    names = {scheme.activation, scheme.weight, *scheme.tensors.values()}
    names |= {name for rule in scheme.layers.values() for name in (rule.activation, rule.weight) if name}
    return [row for name in sorted(names) if (row := scheme.format(name)) is not None]

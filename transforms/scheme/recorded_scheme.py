"""The scheme that a model was quantized with, as tools.quantize leaves it in the metadata."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_graphsurgeon as gs

import ops
from ops.formats import Format
from transforms.files.read_toml import parse_toml
from transforms.graph import walk
from transforms.graph.block_format import block_format_of
from transforms.graph.typed import info_of
from transforms.model import provenance
from transforms.scheme.scheme import Scheme, scheme_from_keys


def recorded_scheme(graph: gs.Graph) -> Scheme | None:
    """Return the scheme in a model's metadata, or None if it is missing or cannot be read."""
    text = info_of(graph).metadata.get(provenance.PREFIX + "scheme")
    if text is None:
        return None
    try:
        return scheme_from_keys(parse_toml(text))
    except (ValueError, RecursionError, OverflowError):
        return None


def candidate_formats(graph: gs.Graph, known: Sequence[Format] = ()) -> list[Format]:
    """Return the block formats that weights of a model may have, likely ones first.

    Those that are known, those of the scheme that it was quantized with, those of its nodes, those of the
    table; the coarsest of each first, since finer grids often hold the same numbers.
    """
    scheme = recorded_scheme(graph)
    own = [fmt for node in walk.nodes(graph) if (fmt := block_format_of(node))]
    ranks = [known, scheme.named_formats if scheme else (), own, ops.FORMATS.values()]
    found = [fmt for rank in ranks for fmt in sorted(rank, key=lambda fmt: fmt.bits) if fmt.block > 1]
    return list({fmt.name: fmt for fmt in found}.values())

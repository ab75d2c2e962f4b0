"""The nodes and tensors of a model, as ``tools.inspect`` lists them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from onnx_narrow.summaries.words import aligned
from transforms.compare.list_model import COMPUTED, ListedLayer, Listing

_WIDEST = 40
"""Columns of a name: a longer one moves the rest of its line to the right."""


def lines(found: Listing, *, layers: bool, tensors: bool) -> Iterator[str]:
    """Yield a title and one line for each node, for each tensor, or for both."""
    if layers:
        yield f"Layers: {len(found.layers):,}"
        yield from _aligned([[one.name, one.operator, _signature(one)] for one in found.layers])
    if tensors:
        yield f"Tensors: {len(found.tensors):,}"
        yield from _aligned([[one.name, one.kind, one.type] for one in found.tensors])


def as_json(found: Listing, *, layers: bool, tensors: bool) -> dict[str, Any]:
    """Return the same for a program to read."""
    result: dict[str, Any] = {}
    if layers:
        result["layers"] = [
            {
                "name": one.name,
                "operator": one.operator,
                "inputs": [tensor.name for tensor in one.inputs],
                "outputs": [tensor.name for tensor in one.outputs],
            }
            for one in found.layers
        ]
    if tensors:
        result["tensors"] = [vars(one) for one in found.tensors]
    return result


def _signature(layer: ListedLayer) -> str:
    """Return inputs and outputs; the type of a computed input stands where it is computed."""
    inputs = (one.name if one.kind == COMPUTED else f"{one.name} {one.type}" for one in layer.inputs)
    return f"{_listed(inputs)} -> {_listed(f'{one.name} {one.type}' for one in layer.outputs)}"


def _listed(tensors: Iterable[str]) -> str:
    return ", ".join(tensors) or "none"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    return (f"  {line}" for line in aligned(rows, _WIDEST))

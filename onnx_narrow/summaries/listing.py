"""The nodes and tensors of a model, as ``tools.inspect`` lists them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from onnx_narrow.summaries.words import aligned
from transforms.compare.list_model import COMPUTED, ListedLayer, Listing

_WIDEST = 40
"""Columns of a name: a longer one moves the rest of its line to the right."""


def lines(listing: Listing, *, layers: bool, tensors: bool) -> Iterator[str]:
    """Yield a title and one line for each node, for each tensor, or for both."""
    if layers:
        yield f"Layers: {len(listing.layers):,}"
        yield from _aligned([[layer.name, layer.operator, _signature(layer)] for layer in listing.layers])
    if tensors:
        yield f"Tensors: {len(listing.tensors):,}"
        yield from _aligned([[tensor.name, tensor.kind, tensor.type] for tensor in listing.tensors])


def as_json(listing: Listing, *, layers: bool, tensors: bool) -> dict[str, Any]:
    """Return the same for a program to read."""
    result: dict[str, Any] = {}
    if layers:
        result["layers"] = [
            {
                "name": layer.name,
                "operator": layer.operator,
                "inputs": [tensor.name for tensor in layer.inputs],
                "outputs": [tensor.name for tensor in layer.outputs],
            }
            for layer in listing.layers
        ]
    if tensors:
        result["tensors"] = [vars(tensor) for tensor in listing.tensors]
    return result


def _signature(layer: ListedLayer) -> str:
    """Return inputs and outputs; the type of a computed input stands where it is computed."""
    inputs = (
        tensor.name if tensor.kind == COMPUTED else f"{tensor.name} {tensor.type}" for tensor in layer.inputs
    )
    return f"{_listed(inputs)} -> {_listed(f'{tensor.name} {tensor.type}' for tensor in layer.outputs)}"


def _listed(tensors: Iterable[str]) -> str:
    return ", ".join(tensors) or "none"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    return (f"  {line}" for line in aligned(rows, _WIDEST))

"""Layers by the names that a scheme has for them, and what a graph stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx_graphsurgeon as gs

from transforms.conversion.quantize_steps import prepare_for
from transforms.graph import walk
from transforms.graph.lazy_values import stored_bytes
from transforms.graph.selection import label_of
from transforms.mix_precision.mixed_model import exactly
from transforms.origins.readings import OUTPUT
from transforms.scheme import Scheme
from transforms.scheme.layer_rule import LayerRule


def names_of(load: Callable[[], gs.Graph], scheme: Scheme) -> set[str]:
    """Return the names of nodes that a scheme can name: those of the model, before channels are moved."""
    graph = load()
    names = {label_of(node) for node in walk.nodes(graph)}
    prepare_for(graph, scheme.with_(outliers={}, layers={}, tensors={}))
    return names | {label_of(node) for node in walk.nodes(graph)}


def naming(scheme: Scheme, nodes: Iterable[str], names: set[str], rule: LayerRule) -> Scheme:
    """Return the scheme in which some nodes of parts, as far as they are among these names, have a rule."""
    layers, tensors = dict(scheme.layers), dict(scheme.tensors)
    for node in nodes:
        if node.startswith(OUTPUT) and node not in names:
            tensors[node.removeprefix(OUTPUT)] = str(rule.activation)
        elif node in names:
            layers[exactly(node)] = rule
    return scheme.with_(layers=layers, tensors=tensors)


def bytes_of_numbers(graph: gs.Graph) -> int:
    """Return the bytes of the numbers that a graph stores; those of few bits share bytes."""
    return sum(stored_bytes(tensor._values) for tensor in walk.constants(graph))

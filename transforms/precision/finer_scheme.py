"""Make schemes in which chosen layers have a finer format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

import onnx_graphsurgeon as gs

from transforms.conversion.prepare import prepare_for
from transforms.graph import walk
from transforms.graph.selection import exactly, label_of
from transforms.precision.chosen import Part
from transforms.precision.readings import OUTPUT
from transforms.scheme import Scheme
from transforms.scheme.layer_rule import LayerRule
from transforms.scheme.scheme import FLOAT32


def fallback_rule(name: str, scheme: Scheme) -> LayerRule:
    """Return the formats of a fallback by its name; ValueError if they are those of the scheme.

    If the scheme quantizes weights alone, only the format of weights gets finer.
    """
    activation = scheme.format(scheme.activation)
    is_unsigned = activation is not None and activation.is_integer and not activation.is_signed
    formats = {"float32": ("float32", "float32"), "bf16": ("bfloat16", "bfloat16")}
    pair = formats.get(name, ("uint16" if is_unsigned else "int16", "int16"))
    rule = LayerRule(FLOAT32 if activation is None else pair[0], pair[1])
    if (rule.activation, rule.weight) == (scheme.activation, scheme.weight):
        raise ValueError(f"fallback '{name}': the formats of this scheme are {rule.label} already")
    return rule


def names_of(load: Callable[[], gs.Graph], scheme: Scheme) -> set[str]:
    """Return the names of nodes that a scheme can name: those of the loaded and of the prepared model.

    Channels are not moved in the latter.
    """
    graph = load()
    names = {label_of(node) for node in walk.nodes(graph)}
    prepare_for(graph, scheme.with_(outliers={}, layers={}, tensors={}))
    return names | {label_of(node) for node in walk.nodes(graph)}


def naming(scheme: Scheme, nodes: Iterable[str], names: Set[str], rule: LayerRule) -> Scheme:
    """Return the scheme with a rule for those of the nodes that are among ``names``, and for outputs.

    A node whose name begins with ``OUTPUT`` stands for an output: its tensor gets the activation format.
    """
    layers, tensors = dict(scheme.layers), dict(scheme.tensors)
    for node in nodes:
        if node.startswith(OUTPUT) and node not in names:
            tensors[node.removeprefix(OUTPUT)] = str(rule.activation)
        elif node in names:
            layers[exactly(node)] = rule
    return scheme.with_(layers=layers, tensors=tensors)


def can_be_named(part: Part, names: Set[str]) -> bool:
    """Return whether a scheme can name a part: a node of it, or its output."""
    return any(node in names or node.startswith(OUTPUT) for node in part.nodes)

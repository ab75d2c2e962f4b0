"""Choose nodes at every run: a boolean input of the model, and an If with two branches that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.typed import Node


@dataclass(frozen=True)
class Branch:
    """Nodes of one branch of an If, and the tensors that it outputs."""

    nodes: Sequence[gs.Node]
    results: Sequence[gs.Tensor]


def add_switch(graph: gs.Graph, name: str, names: walk.Names) -> gs.Variable:
    """Add a boolean scalar input to a model, with a name that starts as given."""
    switch = gs.Variable(names.derive(name, "on"), np.bool_, [])
    graph.inputs.append(switch)
    return switch


def choose(
    graph: gs.Graph, name: str, switch: gs.Variable, on: Branch, off: Branch, results: Sequence[gs.Tensor]
) -> gs.Node:
    """Return an If that computes the results in one of two branches; it is not yet part of the graph.

    Both branches output as many tensors as there are results, with the same types and ranks. Sizes in the
    results' declared shapes are removed: the runtime would rely on them, and models declare wrong ones.
    """
    for tensor in (*on.results, *off.results, *results):
        tensor.shape = None if tensor.shape is None else [None] * len(tensor.shape)
    branches = {"then_branch": _body(graph, on), "else_branch": _body(graph, off)}
    return gs.Node("If", name, branches, [switch], list(results))


def copied(node: gs.Node, name: str, inputs: Sequence[gs.Tensor], outputs: Sequence[gs.Tensor]) -> gs.Node:
    """Return a copy of a node with another name, other inputs and other outputs."""
    copy = Node(node.op, name, dict(node.attrs), list(inputs), list(outputs), domain=node.domain)
    copy.lost = node.lost if isinstance(node, Node) else ()
    return copy


def _body(graph: gs.Graph, branch: Branch) -> gs.Graph:
    return gs.Graph(
        list(branch.nodes),
        inputs=[],
        outputs=list(branch.results),
        opset=graph.opset,
        import_domains=graph.import_domains,
    )

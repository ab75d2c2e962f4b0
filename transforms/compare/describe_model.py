"""Describe a model: size, operators, and the number formats in use."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import onnx_graphsurgeon as gs

from transforms.compare.node_formats import rounded_format, type_name
from transforms.graph import dtypes, walk
from transforms.graph.typed import info_of, source_files
from transforms.judge.decisions import KEY


@dataclass
class ModelDescription:
    """Name and bytes of the files, and counts over the graph and all graphs nested in it.

    ``weights`` maps a stored element type to the number of values with it; ``roundings`` a format to the
    number of nodes that round to it. ``record``: what was tried to make the model, in words.
    """

    name: str
    size: int
    opset: int
    subgraphs: int
    operators: Counter[str] = field(default_factory=Counter)
    weights: Counter[str] = field(default_factory=Counter)
    roundings: Counter[str] = field(default_factory=Counter)
    record: list[str] = field(default_factory=list)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.operators.total()


def describe_model(graph: gs.Graph, path: Path) -> ModelDescription:
    """Return the description of a graph that ``model_io.load`` has read from the path."""
    files = source_files(graph) or [path]
    size = sum(Path(file).stat().st_size for file in files)
    description = ModelDescription(path.name, size, graph.opset, subgraphs=len(list(walk.graphs(graph))) - 1)
    description.record = info_of(graph).metadata.get(KEY, "").splitlines()
    for node in walk.nodes(graph):
        domain = f"{node.domain}::" if node.domain else ""
        description.operators[domain + node.op] += 1
        if name := rounded_format(node):
            description.roundings[name] += 1
    for tensor in (*walk.constants(graph), *_constant_nodes(graph)):
        description.weights[type_name(dtypes.element_type(tensor))] += math.prod(tensor.shape)
    return description


def _constant_nodes(graph: gs.Graph) -> Iterator[gs.Constant]:
    for node in walk.nodes(graph):
        value = node.attrs.get("value")
        if node.op == "Constant" and isinstance(value, gs.Constant):
            yield value

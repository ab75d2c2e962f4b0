"""List the nodes and tensors of a model by name, with types and shapes, without loading its weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx

from transforms.compare.inspect_model import type_text, with_types
from transforms.compare.light_file import read_light
from transforms.compare.number_formats import type_name
from transforms.graph.proto_graphs import each_graph

INPUT, OUTPUT, CONSTANT, COMPUTED = "input", "output", "constant", "computed"


@dataclass(frozen=True)
class ListedTensor:
    """A tensor: its name, its type with its shape, and its kind: one of the four words above."""

    name: str
    type: str
    kind: str


@dataclass(frozen=True)
class ListedLayer:
    """A node, by the name that options and schemes take: its own, or that of its first output."""

    name: str
    operator: str
    inputs: tuple[ListedTensor, ...]
    outputs: tuple[ListedTensor, ...]


@dataclass(frozen=True)
class Listing:
    """The contents of a model, including the bodies of If, Loop and Scan, in the order of its file."""

    layers: tuple[ListedLayer, ...]
    tensors: tuple[ListedTensor, ...]


def list_model(source: Path | onnx.ModelProto) -> Listing:
    """Return the nodes and tensors of a model in a file or in memory.

    Accepts any ONNX model, also with missing external data. Raises ModelError for other files, OSError.
    """
    file = read_light(source)
    layers: list[ListedLayer] = []
    tensors: list[ListedTensor] = []
    by_name: dict[str, ListedTensor] = {}
    for graph in each_graph(with_types(file).graph):
        tensors += (here := list(_tensors(graph)))
        by_name |= {tensor.name: tensor for tensor in here}  # two branches may share a name
        layers += [_layer(node, by_name) for node in graph.node]
    return Listing(tuple(layers), tuple(tensors))


def _tensors(graph: onnx.GraphProto) -> Iterator[ListedTensor]:
    """Yield the tensors of a graph: inputs, constants, and outputs of nodes, some of them graph outputs."""
    types = {value.name: type_text(value) for value in (*graph.input, *graph.value_info, *graph.output)}
    stored = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        if value.name not in stored:
            yield ListedTensor(value.name, types[value.name], INPUT)
    for tensor in graph.initializer:
        sizes = ", ".join(map(str, tensor.dims))
        yield ListedTensor(tensor.name, f"{type_name(tensor.data_type)}[{sizes}]", CONSTANT)
    results = {value.name for value in graph.output}
    for node in graph.node:
        kind = CONSTANT if node.op_type == "Constant" and not node.domain else COMPUTED
        for name in filter(None, node.output):
            yield ListedTensor(name, types.get(name, "unknown"), OUTPUT if name in results else kind)


def _layer(node: onnx.NodeProto, tensors: dict[str, ListedTensor]) -> ListedLayer:
    def _named(names: list[str]) -> tuple[ListedTensor, ...]:
        return tuple(tensors.get(name, ListedTensor(name, "unknown", COMPUTED)) for name in names if name)

    label = node.name or next(iter(node.output), "")
    operator = f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
    return ListedLayer(label, operator, _named(list(node.input)), _named(list(node.output)))

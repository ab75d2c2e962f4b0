"""Graphs and nodes with properties of a model that graph-surgeon drops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_graphsurgeon as gs


@dataclass
class ModelInfo:
    """Properties of a model besides its graph.

    ``inputs`` and ``outputs`` are as they were declared: a tensor may be both, with two declarations.
    ``notes``: what was repaired or left out on loading.
    """

    domain: str = ""
    model_version: int = 0
    doc_string: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    graph_metadata: dict[str, str] = field(default_factory=dict)
    annotations: list[onnx.TensorAnnotation] = field(default_factory=list)
    inputs: dict[str, onnx.ValueInfoProto] = field(default_factory=dict)
    outputs: dict[str, onnx.ValueInfoProto] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Graph(gs.Graph):
    """A graph with the ``info`` of its model, and the digest and files of its source, if there is one."""

    source_sha256: str | None
    source_files: list[Path]

    def __init__(self, *arguments: Any, info: ModelInfo | None = None, **named: Any) -> None:
        """Take the arguments of ``gs.Graph``, and the properties of the model."""
        super().__init__(*arguments, **named)
        self._know(info or ModelInfo())

    @classmethod
    def adopt(cls, graph: gs.Graph, info: ModelInfo) -> Graph:
        """Turn a graph of graph-surgeon into one of this class, in place; return it."""
        graph.__class__ = cls
        typed: Graph = graph
        typed._know(info)
        return typed

    def _know(self, info: ModelInfo) -> None:
        self.info, self.source_sha256, self.source_files = info, None, []


class Node(gs.Node):
    """A node that only equals itself, with its documentation, and attributes that graph-surgeon drops.

    Nodes of graph-surgeon are equal if they compute the same, and its lists of users remove the first equal
    one: of two unnamed nodes in the branches of an If, the wrong one.
    """

    doc_string: str = ""
    metadata: dict[str, str] = {}  # noqa: RUF012 - replaced, never changed
    lost: Sequence[onnx.AttributeProto] = ()

    @classmethod
    def adopt(cls, node: gs.Node) -> Node:
        """Turn a node of graph-surgeon into one of this class, in place; return it."""
        node.__class__ = cls
        return node

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


def info_of(graph: gs.Graph) -> ModelInfo:
    """Return the properties of a graph's model, empty for a graph that was not loaded here."""
    return graph.info if isinstance(graph, Graph) else ModelInfo()


def source_files(graph: gs.Graph) -> list[Path]:
    """Return the files from which a graph was loaded."""
    return graph.source_files if isinstance(graph, Graph) else []

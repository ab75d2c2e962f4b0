"""Graphs and nodes with what graph-surgeon does not keep of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_graphsurgeon as gs


@dataclass
class ModelInfo:
    """What a model says of itself beside its graph.

    ``inputs`` and ``outputs`` are as they were declared: a tensor may be both, and declared in two ways.
    ``notes``: what was mended or left out in loading.
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
        """Take what ``gs.Graph`` takes, and what is known of the model."""
        super().__init__(*arguments, **named)
        self._know(info or ModelInfo())

    @classmethod
    def adopt(cls, graph: gs.Graph, info: ModelInfo) -> Graph:
        """Return the very graph that graph-surgeon made as one of this class."""
        graph.__class__ = cls
        typed: Graph = graph
        typed._know(info)
        return typed

    def _know(self, info: ModelInfo) -> None:
        self.info, self.source_sha256, self.source_files = info, None, []


class Node(gs.Node):
    """A node that equals itself alone, with its documentation, and attributes that graph-surgeon loses.

    Nodes of graph-surgeon are equal when they do the same, and its lists of users remove the first equal one:
    of two unnamed nodes in the branches of an If, the wrong one.
    """

    doc_string: str = ""
    metadata: dict[str, str] = {}  # noqa: RUF012 - replaced, never changed
    lost: Sequence[onnx.AttributeProto] = ()

    @classmethod
    def adopt(cls, node: gs.Node) -> Node:
        """Return the very node that graph-surgeon made as one of this class."""
        node.__class__ = cls
        return node

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


def info_of(graph: gs.Graph) -> ModelInfo:
    """Return what is known of the model of a graph; nothing of a graph that was not loaded here."""
    return graph.info if isinstance(graph, Graph) else ModelInfo()


def source_files(graph: gs.Graph) -> list[Path]:
    """Return the files that a graph was loaded from."""
    return graph.source_files if isinstance(graph, Graph) else []

"""The mixtures of experts of a graph that ONNX Runtime's CPU provider has a kernel for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from transforms.experts.mixture import Mixture
from transforms.experts.runtime_moe import mixture_of
from transforms.experts.written_out import written_out
from transforms.graph.moe import is_moe

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """A mixture, the nodes that it can take the place of, the last of which has its name, and its output."""

    mixture: Mixture
    nodes: list[gs.Node]
    output: gs.Tensor

    @property
    def last(self) -> gs.Node:
        """The node that makes the output."""
        return self.nodes[-1]

    @property
    def name(self) -> str:
        """The name of a node that takes the place of all."""
        return str(self.last.name)


def mixtures(graph: gs.Graph) -> Iterator[Found]:
    """Yield the mixtures of a graph, without its bodies."""
    for node in [node for node in graph.nodes if is_moe(node)]:
        mixture, why_not = mixture_of(node)
        if mixture is None:
            log.debug("experts of '%s' stay: %s", node.name, why_not)
        else:
            yield Found(mixture, [node], node.outputs[0])
    for found in written_out(graph):
        yield Found(found.mixture, found.nodes, found.output)

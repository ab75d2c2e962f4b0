"""Tensors that are rounded for some of their uses."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk

Edge = tuple[int, int]
"""``id`` of a node, and the index of its input."""


@dataclass
class Rounding:
    """One tensor that has to be rounded: the graph that owns it, and which uses read the rounded value."""

    tensor: gs.Tensor
    owner: gs.Graph
    producer: gs.Node | None
    uses: list[tuple[gs.Node, int]] = field(default_factory=list)
    is_output: bool = False

    @property
    def edges(self) -> set[Edge]:
        """The uses that read the rounded value, to look them up."""
        return {(id(node), index) for node, index in self.uses}

    def redirect(self, target: gs.Tensor) -> None:
        """Let the uses that read the rounded value read the target."""
        for node, index in self.uses:
            node.inputs[index] = target

    def split_off(self, names: walk.Names, suffix: str = "raw") -> gs.Variable:
        """Let the producer make a new tensor, read by all uses that do not read the rounded value."""
        assert self.producer is not None
        raw = dtypes.variable(names.derive(self.tensor.name, suffix), dtypes.FLOAT, self.tensor)
        rounded = self.edges
        for node, index in walk.uses(self.tensor):
            if (id(node), index) not in rounded:
                node.inputs[index] = raw
        walk.replace_output(self.producer, self.tensor, raw)
        return raw

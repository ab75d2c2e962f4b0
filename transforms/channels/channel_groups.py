"""Channels of tensors that can be put in another order together, without changing what a model computes.

Between layers that make channels and layers that sum over them, operators act on each channel by itself.
Where that is so on all ways from all layers that make a group of tensors to all that read it, one permutation
of the rows of some weights, and of the columns of others, permutes all of them.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.channels.per_channel import PerChannel, inputs_of, is_stored, outputs_of
from transforms.graph import walk
from transforms.graph.lazy_values import become_constant, derived
from transforms.graph.rewire import STANDARD_DOMAINS

_LAYERS = frozenset({"Conv", "Gemm", "MatMul"})

_ELEMENTWISE = frozenset(
    {"Abs", "Add", "Ceil", "Clip", "Div", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish"}
    | {"Identity", "LeakyRelu", "Log", "Max", "Min", "Mish", "Mul", "Neg", "PRelu", "Pow", "Reciprocal"}
    | {"Relu", "Round", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Tanh"}
    | {"ThresholdedRelu"}
)
"""Operators that compute each number of their inputs at the same place, which they broadcast."""

_POOLS = frozenset({"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool", "MaxPool"})
"""Operators that compute each channel of an image from that channel."""

IMAGE, ROWS = "image", "rows"

Order = NDArray[np.int64]
Key = tuple[int, str]
"""The ``id`` of a tensor, and which of its axes has the channels: the second of images, the last of rows."""


@dataclass
class ChannelGroup:
    """Tensors whose ``channels``, so many, go together.

    ``held``: the initializers that have numbers for each of them; ``consuming``: the weights of the layers
    that sum over them, which are among these.
    """

    channels: int
    consuming: list[PerChannel] = field(default_factory=list)
    held: list[PerChannel] = field(default_factory=list)

    def permute(self, order: Order) -> None:
        """Put the channels in another order: ``order`` has the present number of each.

        Weights that take no memory are put in order whenever they are needed.
        """
        for held in self.held:
            values = held.constant._values
            ordered = partial(np.take, indices=order, axis=held.axis)
            become_constant(held.constant, derived(values, ordered, values.dtype))


def channel_groups(graph: gs.Graph, exclude: Container[gs.Node] = ()) -> list[ChannelGroup]:
    """Return the groups of the outermost graph whose channels may be put in any order, in that of its nodes.

    Conv (of one group, and depthwise), MatMul and Gemm with float32 weights of their own make channels and
    sum over them; element-wise operators and pooling pass them. A group that reaches anything else is left
    out: inputs, outputs and constants in their place, bodies, nodes in ``exclude``, other operators,
    constants that several nodes read, matrices of the size of a table that is looked up.
    """
    search = _Search(graph)
    for node in graph.nodes:
        search.visit(node, is_known=node not in exclude and node.domain in STANDARD_DOMAINS)
    return search.groups()


class _Search:
    """Joins the keys that nodes tie together; notes what holds their channels, who reads them, and ends."""

    def __init__(self, graph: gs.Graph) -> None:
        self._fixed, self._members = walk.ends(graph), {id(node) for node in graph.nodes}
        read = (node.inputs[0] for node in graph.nodes if node.op == "Gather")
        self._tables = {tuple(sorted(table.shape)) for table in read if isinstance(table, gs.Constant)}
        self._leaders: dict[Key, Key] = {}
        self._closed: list[Key] = []
        self._held: list[tuple[Key, PerChannel]] = []
        self._consuming: list[tuple[Key, PerChannel]] = []

    def groups(self) -> list[ChannelGroup]:
        """Return the groups that nothing closes, and whose initializers agree on their size."""
        closed, found = {self._leader(key) for key in self._closed}, dict[Key, ChannelGroup]()
        for key, held in self._held:
            leader = self._leader(key)
            group = found.setdefault(leader, ChannelGroup(held.channels))
            group.held.append(held)
            closed |= {leader} if group.channels != held.channels else set()
        for key, held in self._consuming:
            found[self._leader(key)].consuming.append(held)
        return [group for leader, group in found.items() if leader not in closed]

    def visit(self, node: gs.Node, *, is_known: bool) -> None:
        """Tie, or close, both kinds of channels of all tensors of a node."""
        kinds = self._passed(node) if is_known else set()
        for tensor in (*node.inputs, *node.outputs):
            is_end = isinstance(tensor, gs.Constant) or id(tensor) in self._fixed
            is_end = is_end or any(id(user) not in self._members for user, _ in walk.uses(tensor))
            self._closed += [(id(tensor), kind) for kind in (IMAGE, ROWS) if is_end or kind not in kinds]

    def _passed(self, node: gs.Node) -> set[str]:
        """Tie the channels that a node passes or makes; return their kinds."""
        if node.op in _LAYERS:
            return self._layer(node, IMAGE if node.op == "Conv" else ROWS)
        if node.op in _POOLS and len(node.outputs) == 1:
            self._tie((id(node.inputs[0]), IMAGE), (id(node.outputs[0]), IMAGE))
            return {IMAGE}
        if node.op in _ELEMENTWISE and node.outputs[0].shape is not None:
            return {kind for kind in (IMAGE, ROWS) if self._elementwise(node, kind)}
        return set()

    def _layer(self, node: gs.Node, kind: str) -> set[str]:
        """Note the channels that a layer with a weight of its own sums over, and those that it makes."""
        data, made, weight = (id(node.inputs[0]), kind), (id(node.outputs[0]), kind), node.inputs[1]
        if not self._is_own(weight) or node.attrs.get("transA", 0):
            return set()
        added = (PerChannel(node, index, -1) for index in range(2, len(node.inputs)))
        if (kind == ROWS and len(weight.shape) != 2) or not all(self._hold(made, held) for held in added):
            return set()
        self._held.append((made, outputs_of(node)))
        groups = int(node.attrs.get("group", 1))
        if groups == 1:
            self._held.append((data, inputs_of(node)))
            self._consuming.append((data, inputs_of(node)))
            return {kind}
        self._tie(data, made)
        return {kind} if groups == weight.shape[0] and weight.shape[1] == 1 else set()

    def _elementwise(self, node: gs.Node, kind: str) -> bool:
        """Tie the channels of one kind of all that a node reads and makes; return whether it can be."""
        made = node.outputs[0]
        axis = -1 if kind == ROWS else 1 - len(made.shape)
        if len(made.shape) < (2 if kind == ROWS else 3):
            return False
        for index, tensor in enumerate(node.inputs):
            if walk.is_given(tensor):
                is_tied = self._hold((id(made), kind), PerChannel(node, index, axis))
            else:
                channels = tensor.shape[axis] if len(tensor.shape or ()) >= -axis else None
                is_tied = channels is not None and channels == made.shape[axis]
                self._tie((id(made), kind), (id(tensor), kind))
            if not is_tied:
                return False
        return True

    def _hold(self, key: Key, held: PerChannel) -> bool:
        """Note an input beside channels, if it has a number for each; return whether it can be permuted."""
        tensor = held.constant
        if tensor.is_empty() or (isinstance(tensor, gs.Constant) and held.channels == 1):
            return True
        if is_own := self._is_own(tensor):
            self._held.append((key, held))
        return is_own

    def _is_own(self, tensor: gs.Tensor) -> bool:
        is_own = is_stored(tensor, self._fixed) and walk.is_read_once(tensor)
        return is_own and tuple(sorted(tensor.shape)) not in self._tables  # whose head may be tied to one

    def _tie(self, first: Key, second: Key) -> None:
        self._leaders[self._leader(second)] = self._leader(first)

    def _leader(self, key: Key) -> Key:
        while (leader := self._leaders.setdefault(key, key)) != key:
            key = leader
        return key

"""One layer of a quantized model as a model of its own: what it is timed with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.if_nodes import copied
from transforms.graph.typed import Graph

_FUSED = frozenset({"Relu", "Clip"})
"""Operators that kernels of layers compute along with them; an Add of a constant is another."""


def layer_ends(graph: gs.Graph, nodes: Sequence[gs.Node]) -> dict[str, frozenset[str]]:
    """Return what the layer of these nodes of a float graph ends with, and all that it makes for it.

    By the name of each result: the names of what is made on the way to it, itself included. A bias that is
    added and a Relu or Clip belong to the layer if nothing else reads what they read.
    """
    ends = {}
    for node in nodes:
        chain = [node, *_following(graph, node)]
        ends[str(chain[-1].outputs[0].name)] = frozenset(str(one.outputs[0].name) for one in chain)
    return ends


def cut_layer(
    name: str, graph: gs.Graph, raw: Mapping[str, gs.Tensor], ends: Mapping[str, frozenset[str]]
) -> Graph:
    """Return a layer alone, with the roundings of what it reads and, of what it makes, those right after.

    ``raw`` as in Mixed, of a graph that is not finished; ``ends`` from :func:`layer_ends`. Inputs of the
    result have the names that the tensors have in the float graph. Constants share their values.
    """
    known = {id(tensor): name for name, tensor in raw.items()}
    inner = frozenset().union(*ends.values())
    copy = _Copy(known, inner)
    outputs = [copy.tensor(_rounded(graph, raw[end], known)) for end in ends]
    return Graph(
        copy.nodes,
        inputs=list(copy.inputs.values()),
        outputs=outputs,
        name=name,
        opset=graph.opset,
        import_domains=graph.import_domains,
        ir_version=graph.ir_version,
    )


def float_raw(graph: gs.Graph) -> dict[str, gs.Tensor]:
    """Return the tensors of a float graph, of which each stands for itself."""
    return {name: tensor for name, tensor in walk.tensors(graph).items() if isinstance(tensor, gs.Variable)}


def _following(graph: gs.Graph, node: gs.Node) -> Iterator[gs.Node]:
    tensor, main = node.outputs[0], {id(one) for one in graph.nodes}
    while walk.is_read_once(tensor) and not walk.is_output(tensor, graph):
        (user,) = tensor.outputs
        if id(user) not in main:
            return
        others = [one for one in user.inputs if one is not tensor and not one.is_empty()]
        is_bias = user.op == "Add" and tensor is node.outputs[0]
        if not (is_bias or user.op in _FUSED) or not all(isinstance(one, gs.Constant) for one in others):
            return
        yield user
        tensor = user.outputs[0]


def _rounded(graph: gs.Graph, tensor: gs.Tensor, known: Mapping[int, str]) -> gs.Tensor:
    """Return what the roundings that follow a tensor of the float graph make of it."""
    inserted_ids = {id(node) for node in graph.nodes if not _is_known(node.outputs, known)}
    while True:
        inserted = [node for node in tensor.outputs if id(node) in inserted_ids]
        if not inserted:
            return tensor
        tensor = inserted[0].outputs[0]


def _is_known(tensors: Iterable[gs.Tensor], known: Mapping[int, str]) -> bool:
    return any(id(tensor) in known for tensor in tensors)


class _Copy:
    """Copies what makes a tensor, back to the tensors of the float graph that the layer reads."""

    def __init__(self, known: Mapping[int, str], inner: frozenset[str]) -> None:
        self._known, self._inner = known, inner
        self._names = walk.Names()
        for name in known.values():  # what has the name of a float tensor may be its rounded numbers
            if name not in inner:
                self._names.take(name)
        self._made: dict[int, gs.Tensor] = {}
        self.nodes: list[gs.Node] = []
        self.inputs: dict[str, gs.Variable] = {}

    def tensor(self, tensor: gs.Tensor) -> gs.Tensor:
        """Return the copy of a tensor, after the nodes that make it."""
        waiting = [tensor]
        while waiting:
            one = waiting[-1]
            missing = [] if id(one) in self._made or self._is_end(one) else self._missing(one)
            if missing:
                waiting += reversed(missing)
            else:
                self._copy(waiting.pop())
        return self._made[id(tensor)]

    def _is_end(self, tensor: gs.Tensor) -> bool:
        return self._is_input(tensor) or isinstance(tensor, gs.Constant) or tensor.is_empty()

    def _is_input(self, tensor: gs.Tensor) -> bool:
        name = self._known.get(id(tensor))
        return name is not None and name not in self._inner

    def _missing(self, tensor: gs.Tensor) -> list[gs.Tensor]:
        (node,) = tensor.inputs
        return [one for one in node.inputs if id(one) not in self._made]

    def _copy(self, tensor: gs.Tensor) -> None:
        """Copy a tensor, and the node that makes it, whose inputs are copied, if it has no copy yet."""
        if id(tensor) in self._made:
            return
        if self._is_input(tensor):
            name = self._known[id(tensor)]
            plain = gs.Variable(name, tensor.dtype, tensor.shape)
            self._made[id(tensor)] = self.inputs.setdefault(name, plain)
        elif isinstance(tensor, gs.Constant):
            self._made[id(tensor)] = tensor.copy()
        elif tensor.is_empty():
            self._made[id(tensor)] = gs.Variable.empty()
        else:
            (node,) = tensor.inputs
            inputs = [self._made[id(one)] for one in node.inputs]
            outputs = [gs.Variable(self._free(one.name), one.dtype, one.shape) for one in node.outputs]
            self._made |= {id(old): new for old, new in zip(node.outputs, outputs, strict=True)}
            self.nodes.append(copied(node, node.name, inputs, outputs))

    def _free(self, name: str) -> str:
        return name if self._names.is_free(name) else self._names.derive(name, "cut")

"""Give a float model switches, inputs that put single layers in other formats at each run.

One session then serves all layers and formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_graphsurgeon as gs

from ops import FORMATS
from ops.integer_blocks import dequantize_blocks
from ops.integers import dequantize
from transforms import features
from transforms.features.hooks import WeightForm
from transforms.graph import dtypes, walk
from transforms.graph.constants import load
from transforms.graph.if_nodes import Branch, add_switch, choose, copied
from transforms.graph.rewire import position
from transforms.model.detached_weights import LARGE
from transforms.precision.mixed import Mixed

Switch = tuple[str, str]
"""A layer and the label of its other formats."""

_DEQUANTIZE = ("DequantizeLinear", "ExtendedDequantizeLinear")


def switched_model(base: Mixed, others: Mapping[str, Mixed], wanted: Iterable[Switch]) -> dict[Switch, str]:
    """Add switches to a float model, in place, for layers of ``others``; return the name of each switch.

    Switches are new inputs of the model, bool scalars. A layer whose switch is on reads its operands and bias
    in the formats that it has in the model of that label; all other layers compute as in ``base``. At most
    one switch of a layer may be on. Weights are stored dequantized, in float32.
    """
    writer = _Writer(base)
    switches = {}
    for layer, label in wanted:
        pairs = zip(base.layers[layer], others[label].layers[layer], strict=True)
        switches[layer, label] = writer.add(f"{layer}_{label}", list(pairs), others[label])
    _lift_weights(base.graph)
    return switches


class _Writer:
    """Inserts If nodes into one graph; the float layers move into the innermost else branch."""

    def __init__(self, base: Mixed) -> None:
        self._base, self._names = base, walk.Names(base.graph)
        self._places = {id(node): node for nodes in base.layers.values() for node in nodes}

    def add(self, name: str, pairs: list[tuple[gs.Node, gs.Node]], other: Mixed) -> str:
        """Add a switch between nodes and their counterparts, and return its name."""
        switch = add_switch(self._base.graph, name, self._names)
        for node, counterpart in pairs:
            self._branch(switch, node, counterpart, other)
        return str(switch.name)

    def _branch(self, switch: gs.Variable, node: gs.Node, counterpart: gs.Node, other: Mixed) -> None:
        present = self._places[id(node)]  # the node itself, or the If that it has moved into
        copies = _Copy(self._base, other, self._names)
        copies.node(counterpart, inner=True)
        name = self._names.derive(node.name, "If")
        place = position(self._base.graph, present)
        outputs = list(present.outputs)
        present.outputs = [self._like(tensor) for tensor in outputs]
        on = Branch(copies.nodes, copies.nodes[-1].outputs)
        off = Branch([present], present.outputs)
        choice = choose(self._base.graph, name, switch, on, off, outputs)
        self._base.graph.nodes[place] = choice
        self._places[id(node)] = choice

    def _like(self, tensor: gs.Tensor) -> gs.Variable:
        return dtypes.variable(self._names.derive(tensor.name, "branch"), dtypes.FLOAT, tensor)


class _Copy:
    """Copies a node of a quantized model into another graph, with the nodes that round its inputs."""

    def __init__(self, base: Mixed, other: Mixed, names: walk.Names) -> None:
        self._raw = {id(tensor): base.raw[name] for name, tensor in other.raw.items()}
        self._names = names
        self.nodes: list[gs.Node] = []

    def node(self, node: gs.Node, *, inner: bool = False) -> None:
        """Append a copy of a node, after copies of the producers of its inputs."""
        form = features.weights_of(node)
        inputs = [self._tensor(tensor, form) for tensor in node.inputs]
        outputs = [self._like(tensor) for tensor in node.outputs]
        if not inner:
            self._raw |= {id(old): new for old, new in zip(node.outputs, outputs, strict=True)}
        name = self._names.derive(node.name, "other")
        self.nodes.append(copied(node, name, inputs, outputs))

    def _like(self, tensor: gs.Tensor) -> gs.Variable:
        return gs.Variable(self._names.derive(tensor.name, "other"), tensor.dtype, tensor.shape)

    def _tensor(self, tensor: gs.Tensor, form: WeightForm | None) -> gs.Tensor:
        copy = self._raw.get(id(tensor))
        if copy is not None or tensor.is_empty():
            return tensor if copy is None else copy
        values = _folded(tensor, form)
        if values is not None:
            self._raw[id(tensor)] = gs.Constant(self._names.derive(tensor.name, "other"), values)
        else:
            self.node(tensor.inputs[0])
        return self._raw[id(tensor)]


def _lift_weights(graph: gs.Graph) -> None:
    """Move large constants of bodies to the main graph, so that they are saved as external data.

    A constant belongs to the graph that reads it, so an Identity in the main graph reads it, and bodies read
    the output of the Identity, which the runtime removes.
    """
    names, owners = walk.Names(graph), walk.constant_owners(graph)
    inner = [t for t in walk.constants(graph) if owners[id(t)] is not graph and t.values.nbytes >= LARGE]
    for tensor in inner:
        outer = gs.Variable(names.derive(tensor.name, "outer"), tensor.values.dtype, tensor.shape)
        walk.redirect(tensor, outer)
        name = names.derive(tensor.name, "Identity")
        graph.nodes.insert(0, gs.Node("Identity", name, inputs=[tensor], outputs=[outer]))


def _folded(tensor: gs.Tensor, form: WeightForm | None) -> np.ndarray | None:
    """Return the values of a constant or of a dequantized constant; None for computed tensors."""
    if isinstance(tensor, gs.Constant):
        return load(tensor)
    if form is not None and (weight := form.read(tensor)) is not None:
        return weight.values()
    (node,) = tensor.inputs
    if node.op not in _DEQUANTIZE or not all(isinstance(t, gs.Constant) for t in node.inputs):
        return None
    stored, scale, *rest = (load(t) for t in node.inputs)
    zero_point = rest[0] if rest else np.zeros(scale.shape, stored.dtype)
    if stored.dtype.name not in FORMATS or not FORMATS[stored.dtype.name].is_integer:
        return np.asarray(stored.astype(np.float32) * scale, np.float32)
    axis = node.attrs.get("axis", 1)
    if block := node.attrs.get("block_size"):
        return dequantize_blocks(stored, (scale, zero_point), axis, block)
    return dequantize(stored, scale, zero_point, axis if scale.ndim else None)

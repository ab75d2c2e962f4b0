"""Operators that ONNX Runtime's optimizer puts together, taken apart into ONNX's own.

A session that saves the model it made (``optimized_model_filepath``, extended level) writes them in the
domain com.microsoft. No number format here applies to such a node, and other runtimes do not know it. The
meaning of each is that of ``docs/ContribOperators.md`` of ONNX Runtime.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper, numpy_helper

from transforms.graph import walk
from transforms.graph.proto_graphs import each_graph, read_names
from transforms.graph.rewire import RUNTIME_DOMAIN
from transforms.graph.selection import Exclusion, resolve
from transforms.model import proto_pass
from transforms.model.proto_facts import attributes_of

log = logging.getLogger(__name__)

OPSET = 13
"""First opset into which nodes are taken apart."""

_GELU, _NORM = 20, 17
_NONE = ""  # the name of an input or output that is left out
_FLOATS = frozenset(
    {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16}
)
_PARAMETERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}
)
"""Activations of a FusedConv, with the attributes that its ``activation_params`` stand for."""


def split_fused(graph: gs.Graph, *, exclude: Exclusion = None) -> int:
    """Take the operators of :data:`FUSED` apart, in the bodies of If, Loop and Scan too; return how many.

    The parts compute the same up to rounding inside; GELU and LayerNormalization are single nodes from opsets
    20 and 17 on. A node stays if it is in ``exclude``, if its statistics are outputs
    (SkipLayerNormalization), if it moves axes of a batch or the rank of its input is not known (FusedMatMul),
    and below opset 13.
    """
    if graph.opset < OPSET:
        log.debug("fused operators stay below opset %d, the graph has %d", OPSET, graph.opset)
        return 0
    kept = resolve(exclude, graph)
    fused = (node for node in walk.nodes(graph) if node.domain == RUNTIME_DOMAIN and node.op in FUSED)
    wanted = {node.outputs[0].name for node in fused if node not in kept}
    if not wanted:
        return 0
    split, last = _Split(graph, wanted), -1
    while split.left and split.count > last:  # parts tell the ranks of what other nodes read
        last = split.count
        proto_pass.apply(graph, split.apply)
    return split.count


class _Split:
    """Passes over a model: what is known of its tensors, and how many nodes were taken apart."""

    def __init__(self, graph: gs.Graph, wanted: Collection[str]) -> None:
        """Start with the first outputs of the nodes that are wanted in parts."""
        self.opset, self.names, self._wanted = graph.opset, walk.Names(graph), wanted
        self.count, self.left = 0, len(wanted)
        self._types: dict[str, onnx.TypeProto.Tensor] = {}
        self._read: set[str] = set()
        self._usual: int = onnx.TensorProto.FLOAT

    def apply(self, model: onnx.ModelProto) -> onnx.ModelProto | None:
        """Return the model with nodes taken apart, or None if there are none."""
        before, self.left = self.count, 0
        graphs = list(each_graph(model.graph))
        self._types = {value.name: value.type.tensor_type for graph in graphs for value in _values(graph)}
        self._read = read_names(model.graph) - {_NONE}
        kinds = Counter(one.elem_type for one in self._types.values() if one.elem_type in _FLOATS)
        self._usual = max(kinds, key=lambda kind: kinds[kind], default=self._usual)
        for graph in reversed(graphs):  # bodies before the nodes that they are copied with
            nodes = [part for node in graph.node for part in self._parts(node, graph)]
            del graph.node[:]
            graph.node.extend(nodes)
        return model if self.count > before else None

    def _parts(self, node: onnx.NodeProto, graph: onnx.GraphProto) -> Sequence[onnx.NodeProto]:
        if node.domain != RUNTIME_DOMAIN or node.op_type not in FUSED or node.output[0] not in self._wanted:
            return [node]
        parts = Parts(node, graph, self)
        if not FUSED[node.op_type](parts):
            self.left += 1
            return [node]
        self.count += 1
        return parts.nodes

    def is_read(self, name: str) -> bool:
        """Return whether a node reads a tensor, or a graph returns it."""
        return name in self._read

    def type_of(self, names: Sequence[str]) -> int:
        """Return the type of the first tensor whose type is known: nothing is inferred of what these make."""
        found = (self._types[name].elem_type for name in names if name in self._types)
        return next(filter(None, found), self._usual)

    def rank_of(self, name: str) -> int | None:
        """Return how many axes a tensor has, or None if that is not known."""
        kind = self._types.get(name)
        return len(kind.shape.dim) if kind is not None and kind.HasField("shape") else None


def _values(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from (*graph.input, *graph.output, *graph.value_info)
    for tensor in graph.initializer:
        yield helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)


class Parts:
    """The standard nodes that stand for a fused one, whose last output is the fused one's."""

    def __init__(self, node: onnx.NodeProto, graph: onnx.GraphProto, split: _Split) -> None:
        """Start without any; constants are put into ``graph``."""
        self.node, self.nodes = node, list[onnx.NodeProto]()
        self.attributes: dict[str, Any] = attributes_of(node)
        self.opset, self.rank_of, self.is_read = split.opset, split.rank_of, split.is_read
        self._graph, self._split = graph, split

    def given(self, place: int) -> str:
        """Return the name of an input, empty if it is left out."""
        return str(self.node.input[place]) if place < len(self.node.input) else _NONE

    def add(self, op: str, *inputs: str, to: str = _NONE, **attributes: Any) -> str:
        """Add a node; return the name of its output, a new one unless it is given."""
        base = self.node.output[0]
        name = to or self._split.names.derive(base, op.lower())
        label = self._split.names.derive(self.node.name or base, op.lower())
        self.nodes.append(helper.make_node(op, list(inputs), [name], label, **attributes))
        return name

    def constant(self, value: float, suffix: str) -> str:
        """Add a number of the type of the inputs; return its name."""
        name = self._split.names.derive(self.node.output[0], suffix)
        kind = self._split.type_of(self.node.input)
        array = np.array(value, helper.tensor_dtype_to_np_dtype(kind))
        self._graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def end(self) -> bool:
        """Let the last node make what the fused one made."""
        self.nodes[-1].output[0] = self.node.output[0]
        return True


def _conv(parts: Parts) -> bool:
    attributes = dict(parts.attributes)
    activation = attributes.pop("activation", b"").decode()
    if activation not in ("", "Clip", *_PARAMETERS):
        return False
    parameters = [float(value) for value in attributes.pop("activation_params", ())]
    inputs = [parts.given(place) for place in range(3)]
    made = parts.add("Conv", *(inputs if inputs[2] else inputs[:2]), **attributes)
    if parts.given(3):
        made = parts.add("Add", made, parts.given(3))
    if activation == "Clip":
        bounds = [parts.constant(value, end) for value, end in zip(parameters, ("min", "max"), strict=True)]
        parts.add("Clip", made, *bounds)
    elif activation:
        names: Mapping[str, Any] = dict(zip(_PARAMETERS[activation], parameters, strict=True))
        parts.add(activation, made, **names)
    return parts.end()


def _gemm(parts: Parts) -> bool:
    attributes = dict(parts.attributes)
    activation = attributes.pop("activation", b"").decode()
    own = {key: value for key, value in attributes.items() if not key.startswith("activation_")}
    made = parts.add("Gemm", *(name for name in parts.node.input if name), **own)
    if activation:
        prefix = "activation_"
        parts.add(
            activation, made, **{k.removeprefix(prefix): attributes[k] for k in attributes.keys() - own}
        )
    return parts.end()


def _matmul(parts: Parts) -> bool:
    found = parts.attributes
    if found.get("transBatchA") or found.get("transBatchB"):
        return False
    inputs = []
    for place, side in enumerate("AB"):
        name = parts.given(place)
        if found.get(f"trans{side}"):
            rank = parts.rank_of(name)
            if rank is None or rank < 2:
                return False
            name = parts.add("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])
        inputs.append(name)
    made = parts.add("MatMul", *inputs)
    if (alpha := float(found.get("alpha", 1.0))) != 1:
        parts.add("Mul", made, parts.constant(alpha, "alpha"))
    return parts.end()


def _gelu(parts: Parts, tanh: bool = False) -> bool:
    x = parts.given(0)
    if parts.given(1):
        x = parts.add("Add", x, parts.given(1))
    if parts.opset >= _GELU:
        parts.add("Gelu", x, approximate="tanh" if tanh else "none")
        return parts.end()
    one, half = parts.constant(1.0, "one"), parts.constant(0.5, "half")
    if tanh:
        cube = parts.add("Mul", parts.add("Mul", x, x), x)
        bent = parts.add("Add", x, parts.add("Mul", cube, parts.constant(0.044715, "cubic")))
        gate = parts.add("Tanh", parts.add("Mul", bent, parts.constant(math.sqrt(2 / math.pi), "scale")))
    else:
        gate = parts.add("Erf", parts.add("Div", x, parts.constant(math.sqrt(2), "root")))
    parts.add("Mul", parts.add("Mul", x, parts.add("Add", gate, one)), half)
    return parts.end()


def _quick_gelu(parts: Parts) -> bool:
    x, alpha = parts.given(0), float(parts.attributes.get("alpha", 1.702))
    parts.add("Mul", x, parts.add("Sigmoid", parts.add("Mul", x, parts.constant(alpha, "alpha"))))
    return parts.end()


def _skip_norm(parts: Parts) -> bool:
    outputs = [*parts.node.output, *4 * [_NONE]]
    if any(map(parts.is_read, outputs[1:3])):
        return False
    x, *added = (parts.given(place) for place in (0, 1, 4) if parts.given(place))
    for number, name in enumerate(added, 1):
        x = parts.add("Add", x, name, to=outputs[3] if number == len(added) else _NONE)
    gamma, beta = parts.given(2), parts.given(3)
    epsilon = float(parts.attributes.get("epsilon", 1e-12))
    if parts.opset >= _NORM:
        inputs = [x, gamma, beta] if beta else [x, gamma]
        parts.add("LayerNormalization", *inputs, axis=-1, epsilon=epsilon)
        return parts.end()
    centred = parts.add("Sub", x, parts.add("ReduceMean", x, axes=[-1]))
    variance = parts.add("ReduceMean", parts.add("Mul", centred, centred), axes=[-1])
    deviation = parts.add("Sqrt", parts.add("Add", variance, parts.constant(epsilon, "epsilon")))
    made = parts.add("Mul", parts.add("Div", centred, deviation), gamma)
    if beta:
        parts.add("Add", made, beta)
    return parts.end()


FUSED: Mapping[str, Callable[[Parts], bool]] = MappingProxyType(
    {
        "BiasGelu": _gelu,
        "FastGelu": lambda parts: _gelu(parts, tanh=True),
        "FusedConv": _conv,
        "FusedGemm": _gemm,
        "FusedMatMul": _matmul,
        "Gelu": _gelu,
        "QuickGelu": _quick_gelu,
        "SkipLayerNormalization": _skip_norm,
    }
)
"""How each operator is taken apart; false if a node of it has to stay."""

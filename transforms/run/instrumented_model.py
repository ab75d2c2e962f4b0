"""Show inner tensors of a running model: the only way in which the project looks at them.

Probes reduce a tensor inside the model, so that a large one neither leaves it nor lives longer than without
them. Watchers see a whole tensor in place while the model runs.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper

from ops.array_types import Feed
from transforms.graph import dtypes, walk
from transforms.graph.constants import load
from transforms.graph.lazy_values import Weight
from transforms.graph.rewire import RUNTIME_DOMAIN
from transforms.model import graph_proto
from transforms.run.tensor_watch import See, TensorWatch
from transforms.runtime.session import RunOptions, open_light

Key = TypeVar("Key", bound="str | tuple[str, str]")
"""The key of a shown tensor: its name, or its name and that of a probe."""

_SCALAR: dict[str, Any] = {"keepdims": 0}
_ANY: tuple[tuple[str, dict[str, Any]], ...] = (("Cast", {"to": dtypes.FLOAT}), ("ReduceMax", _SCALAR))

PROBES: Mapping[str, Sequence[tuple[str, dict[str, Any]]]] = MappingProxyType(
    {
        "low": [("ReduceMin", _SCALAR)],
        "high": [("ReduceMax", _SCALAR)],
        "sum": [("ReduceSum", _SCALAR)],
        "nan": [("IsNaN", {}), *_ANY],
        "inf": [("IsInf", {}), *_ANY],
        "float32": [("Cast", {"to": dtypes.FLOAT})],
    }
)
"""Operators with one input, in sequence, whose result is shown instead of a tensor."""


@dataclass(frozen=True)
class ShownModel(Generic[Key]):
    """A light model whose outputs are the tensors to show, its weights, and the output of each tensor.

    ``places``: names of outputs, or of inputs; ``constants``: shown tensors that no node computes.
    """

    light: onnx.ModelProto
    weights: Mapping[str, Weight]
    places: Mapping[Key, str]
    constants: Mapping[Key, np.ndarray]
    watch: TensorWatch


def show_tensors(
    graph: gs.Graph,
    shown: Iterable[Key],
    inputs: Mapping[str, np.dtype] | None = None,
    watched: Iterable[str] = (),
    sequences: Container[str] = (),
) -> ShownModel[Key]:
    """Return a copy of the graph that shows tensors, see :class:`InstrumentedModel`."""
    light, weights = graph_proto.export_light(graph)
    tensors, names = walk.tensors(graph), walk.Names(graph)
    for name, dtype in (inputs or {}).items():
        light.graph.input.append(_fed_value(name, dtype, is_sequence=name in sequences))
    # find each tensor: a constant, a tensor as it is, or the end of a chain of nodes after it
    constants: dict[Key, np.ndarray] = {}
    places: dict[Key, str] = {}
    fed = {value.name for value in light.graph.input}
    after: dict[str, list[onnx.NodeProto]] = {}
    for key in dict.fromkeys(shown):
        name, probe = (key, "") if isinstance(key, str) else key
        if not probe and isinstance(tensors[name], gs.Constant):
            constants[key] = readable(tensors[name])
            continue
        if not probe and dtypes.is_type(tensors[name], dtypes.BFLOAT16):
            probe = "float32"
        nodes = _chain(name, probe, names) if probe else []
        after.setdefault(name, []).extend(nodes)
        places[key] = nodes[-1].output[0] if nodes else name
    watch = TensorWatch(light, names)
    for name in dict.fromkeys(watched):
        after.setdefault(tensors[name].name, []).append(watch.node(name))
    _insert_after(light.graph, after)
    light.graph.node.extend(watch.end())
    outputs = dict.fromkeys((*(place for place in places.values() if place not in fed), *watch.outputs))
    hidden = [value.name for value in light.graph.output if value.name not in outputs]
    light.graph.value_info.extend(filter(None, (_declared(tensors[name]) for name in hidden)))
    del light.graph.output[:]  # the runtime infers the types of the new ones
    declared = {place: _declared(tensors.get(place)) for place in outputs}
    light.graph.output.extend(
        value_info or onnx.ValueInfoProto(name=name) for name, value_info in declared.items()
    )
    return ShownModel(light, weights, places, constants, watch)


def _fed_value(name: str, dtype: np.dtype, *, is_sequence: bool) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    if is_sequence:
        return helper.make_tensor_sequence_value_info(name, kind, None)
    return helper.make_tensor_value_info(name, kind, None)


class InstrumentedModel(Generic[Key]):
    """A model that shows tensors of its main graph for each feed."""

    def __init__(
        self,
        graph: gs.Graph,
        shown: Iterable[Key],
        options: RunOptions | None = None,
        *,
        inputs: Mapping[str, np.dtype] | None = None,
        watched: Iterable[str] = (),
        sequences: Container[str] = (),
    ) -> None:
        """Open a copy of the graph whose outputs are only the shown tensors.

        bfloat16 tensors are shown as float32, since NumPy has no such type. ``inputs``: the types of
        tensors, of any shape, that are fed because no node computes them; for ``sequences`` among them,
        those of their arrays. ``watched``: float32 tensors, not constants, that are seen while the model
        runs. Raises KeyError for a name that is not in the main graph, and whatever
        :func:`transforms.runtime.session.open_session` raises.
        """
        shown_model = show_tensors(graph, shown, inputs, watched, sequences)
        self._constants, self._places, self._watch = (
            shown_model.constants,
            shown_model.places,
            shown_model.watch,
        )
        fed = {"in_order": bool(self._watch.outputs), "sequences": inputs is not None}
        self._model = open_light(shown_model.light, shown_model.weights, options, **fed)

    def types(self) -> dict[Key, str]:
        """Return the runtime's type name of each shown tensor, without constants."""
        arguments = (*self._model.session.get_inputs(), *self._model.session.get_outputs())
        types = {argument.name: argument.type for argument in arguments}
        return {key: types[place] for key, place in self._places.items()}

    def run(
        self, feed: Feed, shown: Collection[Key] | None = None, see: See | None = None
    ) -> dict[Key, np.ndarray]:
        """Return all shown tensors, or some, for a feed; may be called by several threads at once.

        ``see`` is called, in the thread of the caller, with the name and the numbers of each watched tensor
        when it is computed; the numbers are valid only during the call. An exception it raises ends the run.
        """
        keys = [*self._constants, *self._places] if shown is None else shown
        places = {key: self._places[key] for key in keys if key not in self._constants}
        outputs = dict.fromkeys(p for p in places.values() if p not in feed)
        with self._watch.seen_by(see):
            results = self._model.run(feed, [*outputs, *(self._watch.outputs if see else ())])
        arrays = {key: feed[place] if place in feed else results[place] for key, place in places.items()}
        return arrays | {key: self._constants[key] for key in keys if key in self._constants}


def _declared(tensor: gs.Tensor | None) -> onnx.ValueInfoProto | None:
    """Return a tensor with its type if an operator of ONNX Runtime's own computes it, else None.

    The runtime does not infer the types of some of their outputs, such as the scores of MultiHeadAttention.
    """
    if tensor is None or all(node.domain != RUNTIME_DOMAIN for node in tensor.inputs):
        return None
    element = dtypes.element_type(tensor)
    return None if element is None else helper.make_tensor_value_info(tensor.name, element, None)


def float_outputs(graph: gs.Graph) -> list[str]:
    """Return the names of the float32 outputs that the graph computes."""
    computed = (tensor for tensor in graph.outputs if isinstance(tensor, gs.Variable))
    return [tensor.name for tensor in computed if dtypes.is_type(tensor, dtypes.FLOAT)]


def readable(tensor: gs.Constant) -> np.ndarray:
    """Return the values of a constant, bfloat16 as float32."""
    values = load(tensor)
    return values.astype(np.float32) if dtypes.is_type(tensor, dtypes.BFLOAT16) else values


def _chain(name: str, probe: str, names: walk.Names) -> list[onnx.NodeProto]:
    """Return the nodes of a probe of a tensor."""
    nodes: list[onnx.NodeProto] = []
    for op, attributes in PROBES[probe]:
        output = names.derive(name, probe)
        nodes.append(
            helper.make_node(op, [nodes[-1].output[0] if nodes else name], [output], output, **attributes)
        )
    return nodes


def _insert_after(proto: onnx.GraphProto, after: Mapping[str, list[onnx.NodeProto]]) -> None:
    """Insert nodes directly after the node that computes the tensor given as key, or after the inputs."""
    nodes = list(proto.node)
    del proto.node[:]
    for value in proto.input:
        proto.node.extend(after.get(value.name, ()))
    for node in nodes:
        proto.node.append(node)
        for name in node.output:
            proto.node.extend(after.get(name, ()))

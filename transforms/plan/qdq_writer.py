"""Write one quantized tensor into a graph: the nodes of a grid, or a constant that already lies on it."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

import ops
from ops.array_types import QParams
from ops.integer_blocks import dequantize_blocks, quantize_blocks
from ops.integers import as_float_type, dequantize, quantize
from ops.pair_sums import bound_pairs
from transforms.features.hooks import WeightForm
from transforms.graph import dtypes, walk
from transforms.graph.constants import exportable
from transforms.graph.lazy_values import Computed, Weight, constant, derived, is_weightless
from transforms.graph.qdq import BLOCKS, DEQUANTIZE_LINEAR, EXTENDED, STANDARD
from transforms.plan.quant_spec import QuantSpec
from transforms.plan.weight_cache import WeightMemory
from transforms.scheme.scheme import Scheme

_WIDEST_STANDARD = 16  # bits of the integers that ONNX's own operators take

_NEUTRAL = {
    "bfloat16": (np.array(1, np.float32), np.array(0, ml_dtypes.bfloat16)),
    "float16": (np.array(1, np.float32), np.array(0, np.float16)),
}


class QdqWriter:
    """Makes nodes and constants with unused names, and records which domains they need."""

    def __init__(self, graph: gs.Graph, scheme: Scheme, memory: WeightMemory | None = None) -> None:
        """Write into a graph, in the domains that a scheme chooses."""
        self.names, self._scheme = walk.Names(graph), scheme
        self._memory = memory or WeightMemory()
        self._neutral: dict[str, tuple[gs.Constant, gs.Constant]] = {}
        self.domains: set[str] = set()

    def put(
        self, source: gs.Tensor, step: QuantSpec, parameters: QParams | None, target: gs.Tensor | None
    ) -> list[gs.Node]:
        """Return the nodes that put a tensor on a grid; the last outputs ``target``, or a new tensor."""
        fmt = step.format
        if fmt.op in BLOCKS:
            attrs = {**fmt.attributes, "axis": step.axis}
            rounded_tensor = target or self._variable(source, fmt.name)
            return [self._node(fmt.op, self._scheme.domain, [source], rounded_tensor, attrs)]
        pair, domain = self._pair(fmt)
        inputs = self._inputs(source, step, parameters)
        element = dtypes.BFLOAT16 if fmt.name == "bfloat16" else fmt.dtype
        low = gs.Variable(self.names.derive(source.name, "quantized"), element, source.shape)
        high = target or self._variable(source, "dequantized")
        return [
            self._node(pair[0], domain, [source, *inputs], low, _axis(step)),
            self._node(pair[1], domain, [low, *inputs], high, _axis(step)),
        ]

    def store(
        self, source: gs.Constant, step: QuantSpec, parameters: QParams | None, *, keep_node: bool
    ) -> tuple[gs.Tensor, list[gs.Node]]:
        """Store a constant on a grid; return the tensor that replaces it, and the nodes that compute it.

        A block format needs no nodes. ``keep_node`` stores float numbers and lets nodes round them: the
        model's numbers, or, where adjacent products must not saturate, those of the chosen codes.
        """
        fmt = step.format
        if keep_node:
            nodes = self.put(self._paired(source, step, parameters), step, parameters, None)
            return nodes[-1].outputs[0], nodes
        if fmt.op in BLOCKS:
            return self._constant(source, fmt.name, self._on_grid(source, step, parameters)), []
        if step.form is not None and parameters is not None:
            return self._store_in_form(step.form, source, step, parameters)
        (_, op), domain = self._pair(fmt)
        return self._store(source, step, parameters, op, domain)

    def _paired(self, source: gs.Constant, step: QuantSpec, parameters: QParams | None) -> gs.Constant:
        """Return a constant that nodes round to codes without saturating pairs: the source, or a new one."""
        if not step.pairs:
            return source
        return self._constant(source, "paired", rounded(source.values, step, parameters))

    def store_bias(
        self, source: gs.Constant, step: QuantSpec, parameters: QParams
    ) -> tuple[gs.Tensor, list[gs.Node]]:
        """Store an int32 bias with ONNX's own operator, which runtimes fuse; return its tensor and nodes."""
        return self._store(source, step, parameters, DEQUANTIZE_LINEAR, self._scheme.qdq_domain)

    def _store(
        self, source: gs.Constant, step: QuantSpec, parameters: QParams | None, op: str, domain: str
    ) -> tuple[gs.Tensor, list[gs.Node]]:
        stored = self._constant(source, "quantized", self._on_grid(source, step, parameters))
        inputs = [stored, *self._inputs(source, step, parameters)]
        target = self._variable(source, "dequantized")
        return target, [self._node(op, domain, inputs, target, _axis(step))]

    def _store_in_form(
        self, form: WeightForm, source: gs.Constant, step: QuantSpec, parameters: QParams
    ) -> tuple[gs.Tensor, list[gs.Node]]:
        target, integers = self._variable(source, "dequantized"), self._on_grid(source, step, parameters)
        nodes = form.write(self.names, source, integers, (parameters, step.block), target, self._scheme)
        self.domains |= {node.domain or "" for node in nodes}
        return target, nodes

    def _on_grid(self, source: gs.Constant, step: QuantSpec, parameters: QParams | None) -> Weight:
        """Return the stored form of a constant, computed lazily if the constant is not in memory."""
        values = source._values
        if is_weightless(values):
            dtype = values.dtype if step.format.op in BLOCKS else step.format.dtype
            return derived(values, lambda array: _stored(array, step, parameters), dtype)
        grid = None if parameters is None else (parameters[0].tobytes(), parameters[1].tobytes())
        return self._memory.recall(
            source.values, (step, grid), lambda: _stored(source.values, step, parameters)
        )

    def _pair(self, fmt: ops.Format) -> tuple[tuple[str, str], str]:
        if fmt.is_float or fmt.bits > _WIDEST_STANDARD:
            return EXTENDED, self._scheme.domain
        return STANDARD, self._scheme.qdq_domain

    def _inputs(
        self, source: gs.Tensor, step: QuantSpec, parameters: QParams | None
    ) -> tuple[gs.Constant, gs.Constant]:
        """Return scale and zero point; for a float type 1 and 0, which all its tensors share."""
        if parameters is not None:
            scale, zero_point = parameters
            return self._constant(source, "scale", scale), self._constant(source, "zero_point", zero_point)
        name = step.format.name
        if name not in self._neutral:
            self._neutral[name] = neutral_inputs(self.names, name, name)
        return self._neutral[name]

    def _node(
        self, op: str, domain: str, inputs: list[gs.Tensor], output: gs.Tensor, attrs: Mapping[str, object]
    ) -> gs.Node:
        self.domains.add(domain)
        name = self.names.derive(output.name, op)
        return gs.Node(op, name, attrs=dict(attrs), inputs=inputs, outputs=[output], domain=domain or None)

    def _variable(self, like: gs.Tensor, suffix: str) -> gs.Variable:
        return dtypes.variable(self.names.derive(like.name, suffix), dtypes.FLOAT, like)

    def _constant(self, like: gs.Tensor, suffix: str, values: Weight) -> gs.Constant:
        held = values if isinstance(values, Computed) else np.asarray(values)
        return constant(self.names.derive(like.name, suffix), exportable(held))


def take_name(source: gs.Constant, stored: gs.Tensor, outputs: set[int]) -> None:
    """Let the stored form take the name and place of a constant that nothing reads as float any more."""
    if source.outputs or id(source) in outputs:
        return
    if isinstance(stored, gs.Constant):
        stored.name = source.name
    source.values = np.empty(0, np.float32)


def neutral_inputs(names: walk.Names, prefix: str, float_type: str) -> tuple[gs.Constant, gs.Constant]:
    """Return scale 1 and zero point 0 of a float type."""
    scale, zero_point = _NEUTRAL[float_type]
    return (
        gs.Constant(names.derive(prefix, "scale"), scale),
        gs.Constant(names.derive(prefix, "zero_point"), zero_point),
    )


def _axis(step: QuantSpec) -> dict[str, int]:
    blocks = {"block_size": step.block} if step.block else {}
    return blocks if step.axis is None else {"axis": step.axis, **blocks}


def rounded(values: NDArray[np.float32], step: QuantSpec, parameters: QParams | None) -> NDArray[np.float32]:
    """Return float32 numbers as read back from a grid; ``parameters``: of an integer grid."""
    if parameters is None:
        return np.asarray(_in_format(values, step), np.float32)
    stored = _stored(values, step, parameters)
    if step.block and step.axis is not None:
        return dequantize_blocks(stored, parameters, step.axis, step.block)
    return dequantize(stored, *parameters, step.axis)


def _in_format(values: NDArray[np.generic], step: QuantSpec) -> NDArray[np.generic]:
    """Return an array rounded to a format without ranges, with blocks along the axis of the step."""
    return ops.quantize_dequantize(values, step.format, -1 if step.axis is None else step.axis)


def _stored(values: NDArray[np.floating], step: QuantSpec, parameters: QParams | None) -> NDArray[np.generic]:
    if step.format.op in BLOCKS:
        return _in_format(values, step)
    if parameters is None:
        return as_float_type(values, step.format)
    if step.block and step.axis is not None:
        return quantize_blocks(values, parameters, step.format, step.axis, step.block)
    stored = quantize(values, *parameters, step.format, step.axis)
    for axes in step.pairs:
        stored = bound_pairs(stored, axes)
    return stored

"""Reverse-mode differentiation as a rewrite: nodes at the end of the graph compute the gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from transforms.gradients.rules import FLAT, QUANTIZERS, Rule, rule_for
from transforms.gradients.step import NoRuleError, Step, Writer
from transforms.graph import dtypes, walk
from transforms.graph.rewire import STANDARD_DOMAINS, detach

LEAST_OPSET = 13
"""First opset whose reductions and reshapes have the forms that are written here."""

_FLOATS = (dtypes.FLOAT, dtypes.FLOAT16, dtypes.BFLOAT16, int(onnx.TensorProto.DOUBLE), None)


@dataclass(frozen=True)
class Gradients:
    """The results: each wanted tensor is in one of the three.

    ``names`` maps a tensor to the one that holds its gradient, float32 and of the same shape; two tensors may
    share one, and that of an output may be its seed. ``zero`` are those on which no output depends
    differentiably: nothing is computed for them. ``unknown`` names the operator without a rule.
    """

    names: dict[str, str] = field(default_factory=dict)
    zero: frozenset[str] = frozenset()
    unknown: dict[str, str] = field(default_factory=dict)


def add_gradients(graph: gs.Graph, outputs: Mapping[str, str], wanted: Sequence[str]) -> Gradients:
    """Append nodes that compute the gradient of the sum of <seed, output> with respect to wanted tensors.

    ``outputs`` maps float32 outputs of the graph to the names of new graph inputs, their seeds: of the same
    type and shape, to be fed at every run. ``wanted`` are float32 tensors of the main graph: inputs, or
    computed ones. The gradients do not become graph outputs, and existing nodes are unchanged.

    A gradient is complete or unknown, never without some of its parts. Nothing passes through integers and
    booleans (indices, comparisons, sizes), which is exact almost everywhere; roundings to another format
    (Cast between float types, QuantizeLinear with DequantizeLinear, our own operators) count as the identity;
    if a maximum is reached twice, or x is at the corner of a piecewise linear function, it is the gradient of
    one side, or shared. Nodes in bodies of If, Loop and Scan have no rule, so that gradients of tensors that
    a body reads are unknown. Computed weights of a Conv or LayerNormalization have none either.

    Raises ValueError below opset 13, and for names that are missing, taken or of another type.
    """
    tensors = _checked(graph, outputs, wanted)
    chosen = {name: tensors[name] for name in wanted}
    writer = Writer(graph)
    back = _Backward(writer, _depending(graph, chosen.values()))
    for name, seed in outputs.items():
        graph.inputs.append(dtypes.variable(seed, dtypes.FLOAT, tensors[name]))
        back.add(tensors[name], graph.inputs[-1])
    for node in reversed(list(graph.nodes)):
        back.visit(node)
    found = back.results(chosen)
    graph.nodes.extend(_used(writer.nodes, set(found.names.values())))
    return found


def _checked(graph: gs.Graph, outputs: Mapping[str, str], wanted: Sequence[str]) -> dict[str, gs.Tensor]:
    """Return the inputs and computed tensors of the main graph by name; ValueError for bad arguments."""
    if graph.opset < LEAST_OPSET:
        raise ValueError(f"gradients need opset {LEAST_OPSET}, the graph has {graph.opset}")
    made = (tensor for node in graph.nodes for tensor in node.outputs if not tensor.is_empty())
    tensors = {tensor.name: tensor for tensor in (*graph.inputs, *made)}
    ends = {tensor.name for tensor in graph.outputs}
    for name in (*outputs, *wanted):
        if name not in tensors:
            raise ValueError(f"'{name}' is neither an input nor computed in the main graph")
        if not dtypes.is_type(tensors[name], dtypes.FLOAT):
            raise ValueError(f"'{name}' is not known to be float32: it has no gradient")
    names = walk.Names(graph)
    for name, seed in outputs.items():
        if name not in ends:
            raise ValueError(f"'{name}' is not an output of the graph")
        if not names.is_free(seed):
            raise ValueError(f"the name '{seed}' for the seed of '{name}' is taken")
    if len(set(outputs.values())) < len(outputs):
        raise ValueError("two outputs have seeds of the same name")
    return tensors


def _depending(graph: gs.Graph, roots: Iterable[gs.Tensor]) -> set[int]:
    """Return ``id`` of each tensor that changes, differentiably, with one of the roots; and of the roots."""
    found = {id(tensor) for tensor in roots}
    for node in graph.nodes:
        read = [tensor for tensor in walk.reads(node) if id(tensor) in found]
        if read and not (node.op in FLAT and node.domain in STANDARD_DOMAINS):
            found.update(id(tensor) for tensor in node.outputs if _carries(node, tensor, read))
    return found


def _carries(node: gs.Node, output: gs.Tensor, read: Sequence[gs.Tensor]) -> bool:
    """Return whether an output depends on what is read: floats do, and integers that stand for floats."""
    kept = any(dtypes.element_type(tensor) not in _FLOATS for tensor in read)
    return node.op in QUANTIZERS or kept or dtypes.element_type(output) in _FLOATS


class _Backward:
    """The backward pass: the parts of the gradient of each tensor, or why it is unknown."""

    def __init__(self, writer: Writer, depending: set[int]) -> None:
        self._writer, self._depending = writer, depending
        self._parts: dict[int, list[gs.Tensor]] = {}
        self._reasons: dict[int, str] = {}

    def add(self, tensor: gs.Tensor, part: gs.Tensor) -> None:
        """Add a part of the gradient of a tensor, if it is needed."""
        if id(tensor) in self._depending:
            self._parts.setdefault(id(tensor), []).append(part)

    def visit(self, node: gs.Node) -> None:
        """Propagate the gradients of a node's outputs, whose readers were all visited, to its inputs."""
        read = [tensor for tensor in walk.reads(node) if id(tensor) in self._depending]
        outputs = [tensor for tensor in node.outputs if id(tensor) in self._depending]
        if not read or not outputs:
            return
        reason = next((self._reasons[id(tensor)] for tensor in outputs if id(tensor) in self._reasons), None)
        gradients = [self._total(tensor) for tensor in node.outputs]
        if reason is None and all(gradient is None for gradient in gradients):
            return
        rule = rule_for(node)
        reason = reason or _why_not(node, rule, gradients, read)
        if reason is not None or rule is None:
            self._reasons.update((id(tensor), reason or "") for tensor in read)
            return
        self._apply(rule, Step(self._writer, node, gradients))

    def _apply(self, rule: Rule, step: Step) -> None:
        for index, tensor in enumerate(step.node.inputs):
            if id(tensor) not in self._depending or id(tensor) in self._reasons:
                continue
            try:
                if rule.inputs is not None and index not in rule.inputs:
                    raise NoRuleError(f"its input {index} is computed")
                self.add(tensor, rule.make(dataclasses.replace(step, index=index)))
            except NoRuleError as error:
                self._reasons[id(tensor)] = f"{_describe(step.node)}: {error}"

    def _total(self, tensor: gs.Tensor) -> gs.Tensor | None:
        """Return the sum of the parts of a tensor's gradient, None for zero."""
        parts = self._parts.get(id(tensor), [])
        if len(parts) > 1:
            parts[:] = self._writer.write(tensor.name, "Sum", parts, 1, {})
        return parts[0] if parts else None

    def results(self, wanted: Mapping[str, gs.Tensor]) -> Gradients:
        """Return the results for the wanted tensors; their gradients get type and shape."""
        unknown = {n: self._reasons[id(t)] for n, t in wanted.items() if id(t) in self._reasons}
        totals = {n: (self._total(t), t) for n, t in wanted.items() if n not in unknown}
        for total, tensor in totals.values():
            if total is not None and total.dtype is None:
                total.dtype, total.shape = np.dtype(np.float32), tensor.shape
        names = {name: total.name for name, (total, _) in totals.items() if total is not None}
        return Gradients(names, frozenset(totals.keys() - names.keys()), unknown)


def _why_not(
    node: gs.Node, rule: Rule | None, gradients: Sequence[gs.Tensor | None], read: Sequence[gs.Tensor]
) -> str | None:
    """Return the reason why no rule applies, or None."""
    if rule is None:
        return f"{_describe(node)} has no rule"
    if not rule.several and any(gradient is not None for gradient in gradients[1:]):
        return f"{_describe(node)}: more than its first output is used"
    used = [tensor for tensor, g in zip(node.outputs, gradients, strict=True) if g is not None]
    for tensor in (*read, *used):
        if not rule.straight and not dtypes.is_type(tensor, dtypes.FLOAT):
            return f"{_describe(node)}: '{tensor.name}' is not known to be float32"
    return None


def _describe(node: gs.Node) -> str:
    return f"{node.op} '{node.name or node.outputs[0].name}'"


def _used(nodes: Sequence[gs.Node], names: set[str]) -> list[gs.Node]:
    """Return those of the new nodes that the named tensors need, and disconnect the others."""
    needed, kept = set(names), []
    for node in reversed(nodes):
        if any(tensor.name in needed for tensor in node.outputs):
            needed.update(tensor.name for tensor in node.inputs)
            kept.append(node)
        else:
            detach(node)
    return kept[::-1]

"""Find the layers of a model whose formats can be chosen one by one, and their sizes in bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx_graphsurgeon as gs

from ops.legal_names import did_you_mean
from transforms.graph.dot_products import DOT_PRODUCTS, is_dot_product
from transforms.graph.number_shapes import NumberShapes
from transforms.graph.selection import label_of, matches
from transforms.model.model_error import NothingToDoError
from transforms.plan.exact_arithmetic import exact_arithmetic
from transforms.plan.float_only_nodes import spectra
from transforms.plan.named_nodes import operators
from transforms.plan.quant_spec import is_unquantized_float
from transforms.plan.scheme_targets import Targets
from transforms.precision.assign import Size
from transforms.run.instrumented_model import InstrumentedModel
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme
from transforms.scheme.layer_rule import LayerRule

_FLOAT_BITS = 32


@dataclass(frozen=True)
class Candidate:
    """A layer: its name, operator, and the number of elements of its constant and its computed operands.

    ``activations`` are those of one sample. A constant that several layers share counts for each of them,
    since each may store it in another format.
    """

    name: str
    op: str
    weights: int
    activations: int

    def size(self, rule: LayerRule, scheme: Scheme) -> Size:
        """Return the bits of the operands in the formats of a rule."""
        weight, activation = _bits(rule.weight, scheme), _bits(rule.activation, scheme)
        return Size(self.weights * weight, self.activations * activation)


class LayeredModel(Protocol):
    """A model whose layers may have formats of their own."""

    graph: gs.Graph

    def targets(self) -> Targets:
        """Return the nodes and tensors that the scheme names."""


_NO_LAYER = (
    f"no layer is left whose formats can be changed: one of {', '.join(DOT_PRODUCTS)}, not inside If,"
    " Loop or Scan, that the scheme neither keeps in float nor gives formats of its own"
)


def find_candidates(
    model: LayeredModel,
    op_types: Sequence[str],
    exclude: Sequence[str] = (),
) -> dict[str, list[gs.Node]]:
    """Return the nodes of each candidate by its name, in the order of the model.

    Candidates are dot products of the main graph, of these operator types if any are named, whose name
    matches none of the patterns to ``exclude``. Not candidates are layers that the scheme keeps in float or
    gives formats of their own, nor those that compute positions, lengths or spectra, which need float.
    Raises ValueError if no candidate has one of the operator types, for a pattern that matches none, and if
    no candidate is left; NothingToDoError for a model without any.
    """
    targets = model.targets()
    lengths = NumberShapes(model.graph).decided.nodes.keys()
    ruined = exact_arithmetic(model.graph) | spectra(model.graph) | lengths
    ruled = [selection for _, selection, _ in targets.rules]
    layers = {
        name: nodes
        for name, nodes in layers_of(model.graph).items()
        if all(_takes_formats(node) and id(node) not in ruined for node in nodes)
        and not any(node in targets.excluded or any(node in rule for rule in ruled) for node in nodes)
    }
    if not layers:
        raise NothingToDoError(f"Nothing to do: {_NO_LAYER}")
    if op_types:
        present = sorted({op for nodes in layers.values() for op in operators(nodes[0])})
        layers = {name: nodes for name, nodes in layers.items() if operators(nodes[0]) & {*op_types}}
        if not layers:
            types, near = " or ".join(f"'{op}'" for op in op_types), did_you_mean(op_types[0], present)
            raise ValueError(f"no layer whose formats can be changed has operator type {types}{near}")
    for pattern in exclude:
        if not any(matches(name, pattern) for name in layers):
            near = did_you_mean(pattern, layers)
            raise ValueError(f"pattern '{pattern}' matches no layer whose formats can be changed{near}")
    chosen = {name: nodes for name, nodes in layers.items() if not _matches(name, exclude)}
    if not chosen:
        raise ValueError(_NO_LAYER)
    return chosen


def without_uneven(
    nodes: Mapping[str, list[gs.Node]], graph: gs.Graph
) -> tuple[dict[str, list[gs.Node]], list[str]]:
    """Return the candidates whose error can be measured, and a note on the others, if there are any.

    A layer whose number of rows depends on values of tensors has other rows in another model, so its rows
    cannot be compared. Raises ValueError if all candidates are of that kind.
    """
    uneven = NumberShapes(graph).names
    skipped = [name for name, group in nodes.items() if any(node.outputs[0].name in uneven for node in group)]
    if not skipped:
        return dict(nodes), []
    if len(skipped) == len(nodes):
        raise ValueError(
            f"'{skipped[0]}': numbers decide how many rows it has, as every layer that could move"
        )
    note = f"Not moved, for numbers decide how many rows they have: {', '.join(map(repr, skipped))}"
    return {name: group for name, group in nodes.items() if name not in skipped}, [note]


def with_savings(
    nodes: Mapping[str, list[gs.Node]], choices: Sequence[LayerRule], scheme: Scheme
) -> dict[str, list[gs.Node]]:
    """Return the candidates that choices change: those with weights if only formats of weights differ."""
    if any((choice.activation or scheme.activation) != scheme.activation for choice in choices):
        return dict(nodes)
    weighted = {
        name: group
        for name, group in nodes.items()
        if any(isinstance(tensor, gs.Constant) for node in group for tensor in node.inputs[:2])
    }
    return weighted or dict(nodes)


def require_savings(choices: Sequence[LayerRule], scheme: Scheme, *, budget: bool) -> None:
    """Raise ValueError for formats that save no bits: of weights with a ``budget``, else of any operand."""
    plain = LayerRule(scheme.activation, scheme.weight)
    operands = ("weight",) if budget else ("weight", "activation")
    for choice in choices:
        if not any(
            _bits(getattr(choice, operand), scheme) < _bits(getattr(plain, operand), scheme)
            for operand in operands
        ):
            raise ValueError(
                f"auto_mixed_precision: '{choice.label}' takes no fewer bits than '{plain.label}' for"
                f" {' or '.join(operands)}, so that no layer would be moved to it"
            )


def measure_candidates(
    nodes: Mapping[str, list[gs.Node]], graph: gs.Graph, feed: Mapping[str, np.ndarray], run: RunOptions
) -> list[Candidate]:
    """Return the candidates with their sizes; sizes of activations are measured on one sample, ``feed``."""
    activations = {t.name: t for group in nodes.values() for node in group for t in _activations(node)}
    arrays = InstrumentedModel(graph, activations, run).run(feed)
    return [
        Candidate(
            name,
            group[0].op,
            sum(t.values.size for node in group for t in node.inputs[:2] if isinstance(t, gs.Constant)),
            sum(arrays[t.name].size for node in group for t in _activations(node)),
        )
        for name, group in nodes.items()
    ]


def _takes_formats(node: gs.Node) -> bool:
    return all(is_unquantized_float(tensor) for tensor in node.inputs[:2]) and len(node.inputs) > 1


def _activations(node: gs.Node) -> list[gs.Tensor]:
    return [tensor for tensor in node.inputs[:2] if isinstance(tensor, gs.Variable)]


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(matches(name, pattern) for pattern in patterns)


def _bits(name: str | None, scheme: Scheme) -> float:
    fmt = scheme.format(name or scheme.activation)
    return _FLOAT_BITS if fmt is None else fmt.bits


def layers_of(graph: gs.Graph) -> dict[str, list[gs.Node]]:
    """Return the dot products of the main graph by name, in the order of the graph."""
    layers: dict[str, list[gs.Node]] = {}
    for node in graph.nodes:
        if is_dot_product(node):
            layers.setdefault(label_of(node), []).append(node)
    return layers

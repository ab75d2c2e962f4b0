"""The layers of a model whose formats may be changed one by one."""

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
    """A layer: its name, operator, and how many numbers its constant operands and the computed ones have.

    Those that are computed are counted for one sample, constants that layers share for each of them: each may
    have them in a format of its own.
    """

    name: str
    op: str
    weights: int
    activations: int

    def size(self, rule: LayerRule, scheme: Scheme) -> Size:
        """Return how many bits the operands take in these formats."""
        weight, activation = _bits(rule.weight, scheme), _bits(rule.activation, scheme)
        return Size(self.weights * weight, self.activations * activation)


class LayeredModel(Protocol):
    """A model whose layers may have formats of their own."""

    graph: gs.Graph

    def targets(self) -> Targets:
        """Return what the scheme names in it."""


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
    matches none of the patterns to ``exclude``. Those that the scheme keeps in float or gives formats of
    their own are none, nor those that make positions, lengths or spectra, which a format would ruin. Raises
    ValueError for operator types of which none matches, for a pattern that matches none, and where no
    candidate is left; NothingToDoError for a model without any.
    """
    targets = model.targets()
    lengths = NumberShapes(model.graph).decided.nodes.keys()
    ruined = exact_arithmetic(model.graph) | spectra(model.graph) | lengths
    ruled = [selection for _, selection, _ in targets.rules]
    found = {
        name: nodes
        for name, nodes in layers_of(model.graph).items()
        if all(_takes_formats(node) and id(node) not in ruined for node in nodes)
        and not any(node in targets.excluded or any(node in one for one in ruled) for node in nodes)
    }
    if not found:
        raise NothingToDoError(f"Nothing to do: {_NO_LAYER}")
    if op_types:
        present = sorted({op for nodes in found.values() for op in operators(nodes[0])})
        found = {name: nodes for name, nodes in found.items() if operators(nodes[0]) & {*op_types}}
        if not found:
            types, near = " or ".join(f"'{op}'" for op in op_types), did_you_mean(op_types[0], present)
            raise ValueError(f"no layer whose formats can be changed has operator type {types}{near}")
    for pattern in exclude:
        if not any(matches(name, pattern) for name in found):
            near = did_you_mean(pattern, found)
            raise ValueError(f"pattern '{pattern}' matches no layer whose formats can be changed{near}")
    chosen = {name: nodes for name, nodes in found.items() if not _matches(name, exclude)}
    if not chosen:
        raise ValueError(_NO_LAYER)
    return chosen


def without_uneven(
    nodes: Mapping[str, list[gs.Node]], graph: gs.Graph
) -> tuple[dict[str, list[gs.Node]], list[str]]:
    """Return the candidates that can be measured, and a line on those that cannot, if there are any.

    Where numbers decide how many rows a layer has, it has others in another model: no error tells what its
    formats do. Raises ValueError if all are of that kind.
    """
    uneven = NumberShapes(graph).names
    left = [name for name, group in nodes.items() if any(one.outputs[0].name in uneven for one in group)]
    if not left:
        return dict(nodes), []
    if len(left) == len(nodes):
        raise ValueError(f"'{left[0]}': numbers decide how many rows it has, as every layer that could move")
    said = f"Not moved, for numbers decide how many rows they have: {', '.join(map(repr, left))}"
    return {name: group for name, group in nodes.items() if name not in left}, [said]


def with_savings(
    nodes: Mapping[str, list[gs.Node]], choices: Sequence[LayerRule], scheme: Scheme
) -> dict[str, list[gs.Node]]:
    """Return the candidates that the formats change: where only weights have others, those with weights."""
    if any((choice.activation or scheme.activation) != scheme.activation for choice in choices):
        return dict(nodes)
    own = {
        name: group
        for name, group in nodes.items()
        if any(isinstance(tensor, gs.Constant) for node in group for tensor in node.inputs[:2])
    }
    return own or dict(nodes)


def require_savings(choices: Sequence[LayerRule], scheme: Scheme, *, budget: bool) -> None:
    """Raise ValueError for formats that save no bits: for a budget of weights, else at all."""
    plain = LayerRule(scheme.activation, scheme.weight)
    parts = ("weight",) if budget else ("weight", "activation")
    for choice in choices:
        if not any(
            _bits(getattr(choice, part), scheme) < _bits(getattr(plain, part), scheme) for part in parts
        ):
            raise ValueError(
                f"auto_mixed_precision: '{choice.label}' takes no fewer bits than '{plain.label}' for"
                f" {' or '.join(parts)}, so that no layer would be moved to it"
            )


def measure_candidates(
    nodes: Mapping[str, list[gs.Node]], graph: gs.Graph, feed: Mapping[str, np.ndarray], run: RunOptions
) -> list[Candidate]:
    """Return the candidates with their sizes, those of activations as they are on one sample."""
    read = {t.name: t for group in nodes.values() for node in group for t in _activations(node)}
    found = InstrumentedModel(graph, read, run).run(feed)
    return [
        Candidate(
            name,
            group[0].op,
            sum(t.values.size for node in group for t in node.inputs[:2] if isinstance(t, gs.Constant)),
            sum(found[t.name].size for node in group for t in _activations(node)),
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
    found: dict[str, list[gs.Node]] = {}
    for node in graph.nodes:
        if is_dot_product(node):
            found.setdefault(label_of(node), []).append(node)
    return found

"""The BF16 state of a model: its float type, whether it is converted, which nodes are not in BF16."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, schemas, walk
from transforms.graph.dot_products import is_dot_product
from transforms.graph.selection import Exclusion, resolve
from transforms.model import provenance
from transforms.model.model_error import NothingToDoError
from transforms.model.read_model import ModelError
from transforms.plan.exact_arithmetic import positions, shape_arithmetic
from transforms.plan.exact_steps import exact_steps
from transforms.plan.rounding_plan import LEARNED, RoundingPlan, is_downcast, is_saturation, is_upcast

EXCLUDED = "excluded by option"
DECIDING = "decides how long other tensors are"
_NAMES = {dtypes.FLOAT: "float32", dtypes.FLOAT16: "float16", dtypes.BFLOAT16: "bfloat16"}
_TOOLS = {"float32": "tools.convert_fp32_to_bf16", "float16": "tools.convert_fp16_to_bf16"}


@dataclass(frozen=True)
class State:
    """The float type in which most nodes compute, None without any, and the BF16 format if it has one.

    A model is in float16 if it computes in it, not if it only stores its weights in it.
    """

    element: str | None
    format: str | None

    @property
    def converted(self) -> bool:
        """Return whether the model is already a BF16 model."""
        return self.format is not None


@dataclass(frozen=True)
class Tally:
    """Counts of nodes with float tensors: those in BF16, and the others by reason and operator."""

    converted: int
    kept: dict[str, Counter[str]]


def describe(graph: gs.Graph) -> State:
    """Return the state of a graph, from metadata if a tool recorded it, else from its rounding pairs."""
    counts = _arithmetic(graph) or _count((*graph.inputs, *walk.constants(graph), *graph.outputs))
    element = _NAMES[max(counts, key=lambda e: (counts[e], e == dtypes.FLOAT))] if counts else None
    recorded = provenance.option(graph.info.metadata, "format")
    if recorded is not None:
        return State(element, f"format {recorded}")
    return State(element, "what its layers read is rounded" if _is_rounded(graph) else None)


def require(state: State, source: str, name: str) -> None:
    """Raise ModelError, naming the right tool, for a model with another float type than a tool converts.

    NothingToDoError for a model without a float type.
    """
    if state.element in _TOOLS and state.element != source:
        raise ModelError(f"'{name}' is a {state.element} model; use {_TOOLS[state.element]}")
    if state.element is None:
        raise NothingToDoError(f"Nothing to do: '{name}' has no {source} tensor to convert.")


def tally(graph: gs.Graph, exclude: Exclusion, form: str, deciding: Exclusion = None) -> Tally:
    """Count the nodes of a converted graph, in which nodes ``deciding`` lengths were kept in float."""
    excluded, sizes = resolve(exclude, graph), shape_arithmetic(graph)
    exact = {
        "arithmetic on shapes": sizes,
        "arithmetic on positions": positions(graph, sizes),
        "rounding would ruin what it makes": exact_steps(graph),
        DECIDING: set(map(id, resolve(deciding, graph))),
        "thresholds and scales of ai.onnx.ml": {id(n) for n in walk.nodes(graph) if n.domain == LEARNED},
    }
    opsets = schemas.versions(graph)
    reasons: dict[str, Counter[str]] = {}
    converted = 0
    for node in walk.nodes(graph):
        inputs = [] if id(node) in sizes else node.inputs  # Shape does not read the values of a float tensor
        tensors = [*inputs, *node.outputs]
        if is_downcast(node, dtypes.BFLOAT16) or is_upcast(node, dtypes.BFLOAT16) or is_saturation(node):
            continue
        if not any(dtypes.is_type(t, dtypes.FLOAT) or dtypes.is_type(t, dtypes.BFLOAT16) for t in tensors):
            continue
        reason = EXCLUDED if node in excluded else None
        if not _has_bfloat16(node):
            reason = reason or next((why for why, ids in exact.items() if id(node) in ids), None)
        reason = reason or _reason_kept(node, opsets, form)
        converted += reason is None
        if reason is not None:
            reasons.setdefault(reason, Counter())[node.op] += 1
    return Tally(converted, reasons)


def _reason_kept(node: gs.Node, opsets: dict[str, int], form: str) -> str | None:
    if form == "simulate_bf16":
        return "computes in float32 in this format"
    if form != "bf16" or _has_bfloat16(node):
        return None
    if not schemas.allows(node, dtypes.BFLOAT16, opsets):
        return f"not all in bfloat16 by the operator's schema at opset {opsets['']}"
    return "next to tensors that stay float32"


def _has_bfloat16(node: gs.Node) -> bool:
    return any(dtypes.is_type(tensor, dtypes.BFLOAT16) for tensor in (*node.inputs, *node.outputs))


def _arithmetic(graph: gs.Graph) -> Counter[int]:
    """Count the tensors of each float type that are computed, not only cast."""
    made = (tensor for node in walk.nodes(graph) if node.op != "Cast" for tensor in node.outputs)
    return _count(made)


def _count(tensors: Iterable[gs.Tensor]) -> Counter[int]:
    return Counter(element for element in map(dtypes.element_type, tensors) if element in _NAMES)


def _is_rounded(graph: gs.Graph) -> bool:
    """Return whether most dot products only read rounded numbers.

    A model without dot products counts if no rounding is left to plan, which takes all rules of exactness.
    """
    if dtypes.FLOAT16 in _arithmetic(graph):
        return False
    layers = [node for node in walk.nodes(graph) if is_dot_product(node)]
    if layers:
        return 2 * sum(all(map(_is_bfloat16, node.inputs[:2])) for node in layers) > len(layers)
    has_bfloat16 = any(map(_has_bfloat16, walk.nodes(graph)))
    return has_bfloat16 and not RoundingPlan(graph, dtypes.BFLOAT16).roundings


def _is_bfloat16(tensor: gs.Tensor) -> bool:
    if dtypes.is_type(tensor, dtypes.FLOAT):
        return any(is_upcast(node, dtypes.BFLOAT16) for node in tensor.inputs)
    return dtypes.is_type(tensor, dtypes.BFLOAT16)

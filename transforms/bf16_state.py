"""What a model is with regard to BF16: its float type, whether it was converted, what is not in BF16."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from transforms import dtypes, provenance, schemas, walk
from transforms.read_model import ModelError
from transforms.rounding_plan import RoundingPlan, is_narrowing, is_saturation, is_widening
from transforms.selection import Selection

_NAMES = {dtypes.FLOAT: "float32", dtypes.FLOAT16: "float16", dtypes.BFLOAT16: "bfloat16"}
_TOOLS = {"float32": "tools.convert_fp32_to_bf16", "float16": "tools.convert_fp16_to_bf16"}


@dataclass(frozen=True)
class State:
    """The float type that most of a model is in (None without any), and the BF16 format where it has one."""

    element: str | None
    format: str | None

    @property
    def converted(self) -> bool:
        """Return whether the model is a BF16 model already."""
        return self.format is not None


@dataclass(frozen=True)
class Tally:
    """Nodes with float tensors: how many are in BF16, and why how many of which operator are not."""

    converted: int
    kept: dict[str, Counter[str]]


def describe(graph: gs.Graph) -> State:
    """Return the state of a graph: by its metadata where a tool recorded it, else by its rounding pairs."""
    counts = _weights(graph) or _activations(graph)
    element = _NAMES[counts.most_common(1)[0][0]] if counts else None
    recorded = provenance.option(graph.info.metadata, "format")
    if recorded is not None:
        return State(element, f"format {recorded}")
    return State(element, "every tensor is rounded" if _is_rounded_throughout(graph) else None)


def require(state: State, source: str, name: str) -> None:
    """Raise ModelError where a model is not of the float type that a tool converts, naming the right one."""
    if state.element in _TOOLS and state.element != source:
        raise ModelError(f"'{name}' is a {state.element} model; use {_TOOLS[state.element]}")
    if state.element is None:
        raise ModelError(f"'{name}' has no {source} tensor to convert")


def tally(graph: gs.Graph, exclude: Selection, form: str) -> Tally:
    """Count the nodes of a graph just converted to a format."""
    plan = RoundingPlan(graph, dtypes.BFLOAT16, exclude=exclude)
    opsets = schemas.versions(graph)
    kept: dict[str, Counter[str]] = {}
    converted = 0
    for node in walk.nodes(graph):
        tensors = [*node.inputs, *node.outputs]
        if is_narrowing(node, dtypes.BFLOAT16) or is_widening(node, dtypes.BFLOAT16) or is_saturation(node):
            continue
        if not any(dtypes.is_type(t, dtypes.FLOAT) or dtypes.is_type(t, dtypes.BFLOAT16) for t in tensors):
            continue
        reason = _reason_kept(node, plan, opsets, form)
        converted += reason is None
        if reason is not None:
            kept.setdefault(reason, Counter())[node.op] += 1
    return Tally(converted, kept)


def _reason_kept(node: gs.Node, plan: RoundingPlan, opsets: dict[str, int], form: str) -> str | None:
    if node in plan.excluded:
        return "excluded by option"
    if id(node) in plan.shape_nodes:
        return "arithmetic on shapes"
    if form == "simulate_bf16":
        return "computes in float32 in this format"
    if form != "bf16" or any(dtypes.is_type(t, dtypes.BFLOAT16) for t in (*node.inputs, *node.outputs)):
        return None
    if not schemas.allows(node, dtypes.BFLOAT16, opsets):
        return f"no bfloat16 in the operator's schema at opset {opsets['']}"
    return "next to tensors that stay float32"


def _weights(graph: gs.Graph) -> Counter[int]:
    """Count the elements of the constants of each float type."""
    counts: Counter[int] = Counter()
    for tensor in walk.constants(graph):
        element = dtypes.element_type(tensor)
        size = math.prod(tensor.shape)
        if element in _NAMES and size:
            counts[element] += size
    return counts


def _activations(graph: gs.Graph) -> Counter[int]:
    """Count the computed tensors and inputs of each float type."""
    made = (tensor for node in walk.nodes(graph) for tensor in node.outputs)
    elements = (dtypes.element_type(tensor) for tensor in (*graph.inputs, *made) if not tensor.is_empty())
    return Counter(element for element in elements if element in _NAMES)


def _is_rounded_throughout(graph: gs.Graph) -> bool:
    elements = {dtypes.element_type(t) for node in walk.nodes(graph) for t in (*node.inputs, *node.outputs)}
    return dtypes.BFLOAT16 in elements and not RoundingPlan(graph, dtypes.BFLOAT16).roundings

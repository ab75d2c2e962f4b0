"""Tell by nodes and metadata whether a model is already quantized."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.conversion import inspect_bf16
from transforms.files.spelling import spelled
from transforms.graph import walk
from transforms.graph.typed import info_of
from transforms.model import provenance
from transforms.plan.quant_spec import QUANTIZED_BY

_IN_INTEGERS = frozenset(
    {"DynamicQuantizeLinear", "ConvInteger", "MatMulInteger", "QGemm", "DynamicQuantizeMatMul"}
    | {"MatMulIntegerToFloat", "QAttention", "DynamicQuantizeLSTM", "MatMulNBits"}
    | {"MatMulBnb4", "MatMulFpQ4", "QMoE", "MatMulNBitsMlp", "MatMulNBitsQkv"}
    | {"MatMulBlockQuantizedFp4Weight", "MatMulBlockQuantizedFp8Weight"}
)
"""Quantized operators besides those named QLinear..., including those of ONNX Runtime."""


def why_quantized(graph: gs.Graph) -> str:
    """Return in words what shows that a model is quantized; empty for a float model.

    Quantization that left no node is recorded in the metadata.
    """
    for node in walk.nodes(graph):
        if node.op in QUANTIZED_BY or node.op in _IN_INTEGERS or node.op.startswith("QLinear"):
            return f": '{node.name or node.outputs[0].name}' is a {node.op} node"
    if provenance.tool(info_of(graph).metadata) == "quantize":
        return ": tools.quantize made it"
    state = inspect_bf16.describe(graph)
    return f", to BF16: {state.format}" if state.converted else ""


def refuse_swapped(float_graph: gs.Graph, quantized_graph: gs.Graph, *names: str) -> None:
    """Raise ValueError for a quantized model and its float model that were swapped.

    ``names``: of the file given as the float model, and of the other.
    """
    if why_quantized(float_graph) and not why_quantized(quantized_graph):
        places = (spelled("{float_model}"), spelled("{quantized}"))
        first, second = (f"'{name}' ({place})" for name, place in zip(names, places, strict=True))
        raise ValueError(f"{first} is quantized and {second} is a float model: swap them")

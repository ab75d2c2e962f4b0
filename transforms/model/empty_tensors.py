"""What ONNX Runtime's optimizer gets wrong: tensors of no numbers, and integers that bodies read."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from transforms.graph.proto_graphs import each_graph

_RESHAPES_WRONGLY = "MatMulAddFusion"
"""Puts a Reshape to a shape with 0 around a Gemm, in which 0 stands for the size of another axis."""

_ABORTS = "QDQPropagationTransformer"
"""Ends the process where a body reads what nodes make of dequantized numbers that they move
(:mod:`transforms.runtime_workarounds`)."""


def unsafe_optimizers(graph: onnx.GraphProto) -> list[str]:
    """Return the optimizers, by their names, that a session on a model is to leave out.

    Sizes are the declared and inferred ones: a size that is 0 only when the model runs does no harm.
    """
    graphs = list(each_graph(graph))
    found = [_RESHAPES_WRONGLY] if any(0 in shape for inner in graphs for shape in _shapes(inner)) else []
    has_integers = any(node.op_type == "DequantizeLinear" for inner in graphs for node in inner.node)
    return [*found, *([_ABORTS] if has_integers and len(graphs) > 1 else [])]


def _shapes(graph: onnx.GraphProto) -> Iterator[list[int | None]]:
    for value in (*graph.input, *graph.output, *graph.value_info):
        sizes = value.type.tensor_type.shape.dim
        yield [one.dim_value if one.HasField("dim_value") else None for one in sizes]
    yield from (list(tensor.dims) for tensor in graph.initializer)

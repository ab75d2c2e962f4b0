"""What ONNX Runtime's optimizer gets wrong in models with tensors of no numbers."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

_RESHAPES_WRONGLY = "MatMulAddFusion"
"""Puts a Reshape to a shape with 0 around a Gemm, in which 0 stands for the size of another axis."""


def unsafe_optimizers(graph: onnx.GraphProto) -> list[str]:
    """Return the optimizers, by their names, that a session on a model is to leave out.

    Found by the declared and inferred shapes: a size that is 0 only when the model runs does no harm.
    """
    return [_RESHAPES_WRONGLY] if any(0 in shape for shape in _shapes(graph)) else []


def _shapes(graph: onnx.GraphProto) -> Iterator[list[int | None]]:
    for value in (*graph.input, *graph.output, *graph.value_info):
        sizes = value.type.tensor_type.shape.dim
        yield [one.dim_value if one.HasField("dim_value") else None for one in sizes]
    yield from (list(tensor.dims) for tensor in graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _shapes(attribute.g)

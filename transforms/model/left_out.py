"""What loading leaves out of a model, or stores in another form, in words for the user."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx

from transforms.graph.proto_graphs import each_graph


def notes_on_left_out(
    model: onnx.ModelProto, inlined: Sequence[onnx.FunctionProto], sparse: int
) -> list[str]:
    """Return notes on what a model has and its graph will not.

    ``inlined`` are the functions that it loses, ``sparse`` is the number of sparse tensors.
    """
    notes = []
    if inlined:
        notes.append(f"Local functions inlined: {len(inlined)}")
    if sparse:
        notes.append(f"Sparse tensors stored as dense ones: {sparse}")
    left_out = list(_left_out(model, inlined))
    if left_out:
        notes.append(f"Left out of the result: {', '.join(left_out)}")
    return notes


def _left_out(model: onnx.ModelProto, inlined: Sequence[onnx.FunctionProto]) -> Iterator[str]:
    if model.training_info:
        yield "training_info"
    if model.configuration:
        yield "device configurations"
    bodies = [graph for graph in each_graph(model.graph) if graph is not model.graph]
    if any(body.quantization_annotation for body in bodies):
        yield "quantization annotations inside bodies"
    if any(body.metadata_props for body in bodies):
        yield "metadata of bodies"
    if any(function.doc_string or function.metadata_props for function in inlined):
        yield "documentation and metadata of functions"
    tensors = (one for graph in (model.graph, *bodies) for one in (*graph.initializer, *graph.value_info))
    if any(one.doc_string or one.metadata_props for one in tensors):
        yield "documentation and metadata of tensors"

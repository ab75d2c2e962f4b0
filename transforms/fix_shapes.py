"""Fixed sizes for free dimensions of a model's inputs, propagated through the model."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

import onnx
import onnx.shape_inference
import onnx_graphsurgeon as gs

from ops.legal_names import refuse_unknown
from transforms.files.runtime_message import said_by_runtime
from transforms.graph import walk
from transforms.graph.rewire import onnx_op
from transforms.graph.selection import label_of
from transforms.graph.shapes import shape_of
from transforms.graph.typed import info_of
from transforms.model import detached_weights, graph_proto, proto_pass
from transforms.model.read_model import ModelError

log = logging.getLogger(__name__)

Shapes = Mapping[str, Sequence[int]]


def fix_shapes(graph: gs.Graph, shapes: Shapes) -> int:
    """Give inputs, by name, shapes without free dimensions; return how many dimensions of inputs were fixed.

    A named dimension gets its size wherever the name occurs, also in inputs that are not listed. All other
    shapes are inferred again; sizes that depend on the values of a tensor stay free. Weights, nodes and
    results stay the same.

    Raises ValueError for an unknown input and a shape that contradicts the declared one or another input,
    ModelError for sizes that contradict the nodes or the declared outputs.
    """
    walk.check_graph(graph)
    sizes = _sizes(graph, shapes)
    fixed = {id(tensor): _fixed(tensor, shapes.get(tensor.name), sizes) for tensor in graph.inputs}
    changed = [tensor for tensor in graph.inputs if fixed[id(tensor)] != _listed(tensor)]
    if not changed:
        return 0
    count = sum(_free(_listed(tensor)) - _free(fixed[id(tensor)]) for tensor in changed)
    was_consistent = _why_inconsistent(graph) is None
    for tensor in changed:
        tensor.shape = fixed[id(tensor)]
    _name_sizes(graph, sizes)
    _declare(graph)
    reason = _why_inconsistent(graph)
    if reason and was_consistent:
        raise ModelError(f"the shapes {_shown(shapes)} contradict the model: {reason}")
    proto_pass.apply(graph, lambda model: model)
    _declare(graph)
    _refuse_lost_elements(graph, shapes)
    log.debug("%d dimensions of inputs fixed", count)
    return count


def _sizes(graph: gs.Graph, shapes: Shapes) -> dict[str, int]:
    """Return the sizes of named dimensions; raise ValueError for a shape that does not fit its input."""
    inputs = {tensor.name: tensor for tensor in graph.inputs}
    sizes: dict[str, tuple[int, str]] = {}
    for name, shape in shapes.items():
        refuse_unknown(name, [str(size) for size in inputs], "input")
        declared = _listed(inputs[name])
        if declared is None:
            continue
        if len(declared) != len(shape):
            raise ValueError(
                f"input '{name}' has {len(declared)} dimensions, {_dims(shape)} has {len(shape)}"
            )
        for axis, (old, new) in enumerate(zip(declared, shape, strict=True)):
            if isinstance(old, int) and old != new:
                raise ValueError(f"input '{name}': dimension {axis} is {old}, it cannot be {new}")
            size, where = sizes.setdefault(old, (new, name)) if isinstance(old, str) else (new, name)
            if size != new:
                raise ValueError(f"dimension '{old}' is {size} in input '{where}' and {new} in '{name}'")
    return {name: wanted for name, (wanted, _) in sizes.items()}


def _listed(tensor: gs.Tensor) -> list[int | str | None] | None:
    shape = shape_of(tensor)
    return None if shape is None else list(shape)


def _fixed(
    tensor: gs.Tensor, fixed_shape: Sequence[int] | None, sizes: Mapping[str, int]
) -> list[int | str | None] | None:
    if fixed_shape is not None:
        return list(fixed_shape)
    shape = _listed(tensor)
    return None if shape is None else [sizes.get(d, d) if isinstance(d, str) else d for d in shape]


def _free(shape: Sequence[int | str | None] | None) -> int:
    """Return how many dimensions are not fixed; 1 if the rank is unknown."""
    return 1 if shape is None else sum(not isinstance(size, int) for size in shape)


def _name_sizes(graph: gs.Graph, sizes: Mapping[str, int]) -> None:
    """Put the sizes of named dimensions into the shapes of all computed tensors and outputs."""
    for inner in walk.graphs(graph):
        for tensor in (*inner.outputs, *(t for node in inner.nodes for t in node.outputs)):
            if isinstance(tensor, gs.Variable) and tensor.shape is not None:
                tensor.shape = [sizes.get(d, d) if isinstance(d, str) else d for d in tensor.shape]


def _declare(graph: gs.Graph) -> None:
    """Write fixed sizes into the declarations of inputs and outputs, which are saved as they were read."""
    info = info_of(graph)
    for tensors, declared in ((graph.inputs, info.inputs), (graph.outputs, info.outputs)):
        for tensor in tensors:
            shape, value = _listed(tensor), declared.get(tensor.name)
            if shape is not None and value is not None and value.type.HasField("tensor_type"):
                declared[tensor.name] = _declared(value, shape)


def _declared(before: onnx.ValueInfoProto, shape: Sequence[int | str | None]) -> onnx.ValueInfoProto:
    """Return a declaration with the sizes that are fixed; the given one may be shared with other graphs."""
    value = onnx.ValueInfoProto.FromString(before.SerializeToString())
    dims = value.type.tensor_type.shape.dim
    if len(dims) != len(shape):
        value.type.tensor_type.ClearField("shape")
        dims.extend(onnx.TensorShapeProto.Dimension() for _ in shape)
    for dim, size in zip(dims, shape, strict=True):
        if isinstance(size, int):
            dim.dim_value = size
    return value


def _why_inconsistent(graph: gs.Graph) -> str | None:
    """Return the first contradiction that shape inference finds, or None."""
    model = detached_weights.as_inputs(*graph_proto.export_light(graph))
    try:
        onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError) as error:
        return said_by_runtime(error)
    return None


def _refuse_lost_elements(graph: gs.Graph, shapes: Shapes) -> None:
    """Refuse a Reshape to another number of elements, which shape inference does not detect."""
    for node in walk.nodes(graph):
        if onnx_op(node) != "Reshape":
            continue
        before, after = shape_of(node.inputs[0]), shape_of(node.outputs[0])
        if before is None or after is None or _free(before) or _free(after):
            continue
        if math.prod(before) != math.prod(after):  # type: ignore[arg-type]
            raise ModelError(
                f"the shapes {_shown(shapes)} contradict the model: Reshape '{label_of(node)}' makes "
                f"{_dims(after)} of {_dims(before)}"
            )


def _shown(shapes: Shapes) -> str:
    return ", ".join(f"{name}:{','.join(map(str, shape))}" for name, shape in shapes.items())


def _dims(shape: Sequence[object]) -> str:
    return f"[{', '.join(map(str, shape))}]"

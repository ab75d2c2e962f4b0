"""Make a bfloat16 model run without bfloat16 kernels: compute in float32, round after every node."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.dtypes import BFLOAT16, FLOAT, is_type, variable
from transforms.widen_float16 import cast, widen_attributes

_RUNTIME_DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})
_TYPE_BLIND = frozenset({"Cast", "CastLike", "Constant", "If", "Loop", "Scan", "Identity", "Reshape"})


def widen_bf16(graph: gs.Graph) -> int:
    """Wrap every node that touches bfloat16 in Casts, in place; return how many nodes and ends changed.

    A node's bfloat16 inputs come through a Cast to float32 (one per tensor and graph, however many
    consumers), and its bfloat16 outputs are computed in float32 and go through a Cast to bfloat16. So each
    node's result is rounded once, as on a machine with bfloat16 kernels that accumulate in float32.

    * ConstantOfShape, EyeLike and the like: ``value``, ``dtype`` or ``output_dtype`` becomes float32.
    * If, Loop and Scan keep their bfloat16 inputs and outputs; their bodies are widened. A captured bfloat16
      tensor is widened inside the body that uses it.
    * Graph inputs of type bfloat16 take float32, which is rounded on entry; graph outputs of type bfloat16
      become float32. Their names stay. An input that is directly an output is passed on unrounded.
    * Does nothing to Cast, CastLike, Constant, Identity and Reshape, which the CPU provider runs in
      bfloat16; to operators of other domains than ONNX's and ONNX Runtime's own, which bring their own
      kernels; to operators on sequences; to tensors of unknown type (``model_io.load`` infers types).
    """
    names = walk.Names(graph)
    changed = sum(_widen_nodes(inner, names) for inner in walk.graphs(graph))
    return changed + _widen_interface(graph, names)


def _widen_nodes(graph: gs.Graph, names: walk.Names) -> int:
    """Rebuild the graph's node list with Casts next to the nodes that need them, in a valid order."""
    rebuilt: list[gs.Node] = []
    widened: dict[int, gs.Variable] = {}
    changed = 0
    for node in graph.nodes:
        if not _needs_wrapping(node):
            rebuilt.append(node)
            continue
        for i, tensor in enumerate(node.inputs):
            if not is_type(tensor, BFLOAT16):
                continue
            if id(tensor) not in widened:
                widened[id(tensor)] = _like(tensor, "float32", names)
                rebuilt.append(cast(tensor, widened[id(tensor)], names))
            node.inputs[i] = widened[id(tensor)]
        rebuilt += [node, *_round_outputs(node, names)]
        changed += 1
    graph.nodes[:] = rebuilt
    return changed


def _needs_wrapping(node: gs.Node) -> bool:
    if node.op in _TYPE_BLIND or (node.domain or "") not in _RUNTIME_DOMAINS:
        return False
    tensors = (*node.inputs, *node.outputs)
    are_plain = all(getattr(tensor, "type", "tensor_type") == "tensor_type" for tensor in tensors)
    return are_plain and any(is_type(tensor, BFLOAT16) for tensor in tensors)


def _round_outputs(node: gs.Node, names: walk.Names) -> list[gs.Node]:
    widen_attributes(node, BFLOAT16)
    casts = []
    for i, tensor in enumerate(node.outputs):
        if is_type(tensor, BFLOAT16):
            node.outputs[i] = _like(tensor, "unrounded", names)
            casts.append(cast(node.outputs[i], tensor, names))
    return casts


def _widen_interface(graph: gs.Graph, names: walk.Names) -> int:
    """Make each bfloat16 input and output of the graph float32 under its name; tensors inside get others."""
    count = 0
    for index, tensor in enumerate(graph.inputs):
        if is_type(tensor, BFLOAT16):
            outer = graph.inputs[index] = _outer(tensor, names)
            graph.outputs[:] = [outer if output is tensor else output for output in graph.outputs]
            graph.nodes.insert(0, cast(outer, tensor, names))
            count += 1
    for index, tensor in enumerate(graph.outputs):
        if is_type(tensor, BFLOAT16):
            outer = graph.outputs[index] = _outer(tensor, names)
            graph.nodes.append(cast(tensor, outer, names))
            count += 1
    return count


def _outer(tensor: gs.Tensor, names: walk.Names) -> gs.Variable:
    """Return a float32 tensor that takes over the name of a bfloat16 one."""
    outer = variable(tensor.name, FLOAT, tensor)
    tensor.name = names.derive(outer.name, "bfloat16")
    return outer


def _like(tensor: gs.Tensor, suffix: str, names: walk.Names) -> gs.Variable:
    return variable(names.derive(tensor.name, suffix), FLOAT, tensor)

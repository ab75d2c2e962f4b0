"""Microscaling in ONNX's own form: QuantizeLinear and DequantizeLinear on blocks, scales of float8e8m0."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.elements import ELEMENTS
from ops.formats import ATTRIBUTES, MX, Format
from ops.reference import HALF_EVEN
from transforms.convert_opset import convert_opset
from transforms.functions import DOMAIN
from transforms.functions.block_bodies import scale_bound
from transforms.functions.native_mx import BLOCK_SCALE, NATIVE, SCALE, least_opset, native_weight
from transforms.functions.pack_constant import may_be_packed
from transforms.graph import dtypes, walk
from transforms.graph.block_format import block_format_of
from transforms.graph.constants import Constants, exportable
from transforms.graph.dot_products import is_dot_product, is_operand
from transforms.graph.lazy_values import constant, derived, load_values
from transforms.graph.rewire import STANDARD_DOMAINS, detach, import_domains, onnx_op
from transforms.graph.schemas import changes
from transforms.graph.selection import label_of
from transforms.model.read_model import ModelError
from transforms.plan.quant_spec import block_axis
from transforms.scheme.sources import recorded_scheme

_CONVERTED = 22
"""The opset to which models are converted; later ones only give the operators of these models more types,
and attributes whose defaults are the old meaning:"""

_SAME_MEANING = {("Cast", 24), ("CastLike", 24), ("QuantizeLinear", 23), ("DequantizeLinear", 23)}


def write_onnx_mx(graph: gs.Graph, formats: Sequence[Format] = ()) -> int:
    """Write MXQuantizeDequantize nodes, and weights on the grid of Microscaling, in ONNX's own form.

    Returns how many. A node becomes QuantizeLinear and DequantizeLinear along its axis, with the scales of
    its blocks computed by a function in standard operators (:mod:`transforms.functions.native_mx`); a weight
    becomes elements and scales with a DequantizeLinear. Values stay the same, except: zeros of int8 elements
    have no sign, scales are 2^-127 at least, infinities saturate in float elements and NaN becomes 0 in int8,
    and a tensor of a single number is rounded, too. The graph is raised to opset 24, to 28 for elements of 6
    bits. ``formats`` are those that weights may have, by default those of the model's scheme and nodes.

    Raises ModelError, naming the format, for block formats other than Microscaling, for int8 elements that
    are not rounded half to even, tensors that are not float32, weights that have no such form, and operators
    that change their meaning on the way to the opset.
    """
    nodes = [_checked(node) for node in walk.nodes(graph) if node.op in ATTRIBUTES]
    scheme = recorded_scheme(graph)
    named = formats or (scheme.named_formats if scheme else ())
    format_by_name = {fmt.name: fmt for fmt in (*named, *nodes) if fmt.block > 1}
    for fmt in format_by_name.values():
        if fmt.op != MX:
            raise ModelError(f"format '{fmt.name}' has no form in ONNX: only those of OCP Microscaling have")
    used = [*nodes, *(fmt for _, fmt, _ in _weights(graph, format_by_name.values()))]
    if not used:
        return 0
    _raise(graph, max(map(least_opset, used)))
    names, owners = walk.Names(graph), walk.constant_owners(graph)
    stored: dict[int, list[gs.Node]] = {}
    for tensor, fmt, axis in list(_weights(graph, format_by_name.values())):
        stored.setdefault(id(owners[id(tensor)]), []).append(_dequantized(tensor, fmt, axis, names))
    for inner in list(walk.graphs(graph)):
        placed = [new for node in inner.nodes for new in _native(node, names)]
        inner.nodes = [*stored.get(id(inner), ()), *placed]
    left = {node.domain for node in walk.nodes(graph)} | set(STANDARD_DOMAINS)
    graph.import_domains = [opset for opset in graph.import_domains or () if opset.domain in left]
    import_domains(graph, {DOMAIN} & left)
    return len(used)


def _checked(node: gs.Node) -> Format:
    """Return the format that a node rounds to, or raise if ONNX's own operators round in another way."""
    fmt = block_format_of(node)
    assert fmt is not None, "a block operator"
    mode = fmt.attributes["rounding_mode"]
    if fmt.op == MX and fmt.attributes["element_dtype"] == "int8" and mode != HALF_EVEN:
        words = f"ONNX rounds half to even, which is rounding_mode {HALF_EVEN}"
        raise ModelError(f"node '{label_of(node)}' rounds to {fmt.name} with rounding_mode {mode}: {words}")
    if fmt.op == MX and not dtypes.is_type(node.inputs[0], dtypes.FLOAT):
        raise ModelError(f"node '{label_of(node)}' rounds a tensor to {fmt.name} that is not float32")
    return fmt


def _weights(graph: gs.Graph, formats: Iterable[Format]) -> Iterator[tuple[gs.Constant, Format, int]]:
    """Yield the stored operands of dot products on the grid of a format, with it and the axis of blocks."""
    known, outputs = Constants(graph), walk.outputs(graph)
    ranked = sorted(formats, key=lambda fmt: fmt.bits)
    for tensor in list(walk.constants(graph)):
        if not dtypes.is_type(tensor, dtypes.FLOAT) or known.shape(tensor) is None or id(tensor) in outputs:
            continue
        uses = [(n, i) for n, i in walk.uses(tensor) if is_dot_product(n) and is_operand(n, i)]
        if not uses or not may_be_packed(values := load_values(tensor._values)):
            continue
        axes = dict.fromkeys(block_axis(node, index, tensor) % len(tensor.shape) for node, index in uses)
        pairs = ((fmt, axis) for axis in axes for fmt in ranked)
        if first := next((one for one in pairs if native_weight(values, *one) is not None), None):
            yield tensor, *first


def _raise(graph: gs.Graph, opset: int) -> None:
    """Raise a graph to an opset that ONNX Runtime may not know, to compare with: only imports change."""
    newest = onnx.defs.onnx_opset_version()
    if newest < opset:
        raise ModelError(f"the form of Microscaling needs opset {opset}, the installed onnx has {newest}")
    convert_opset(graph, _CONVERTED)
    for node in filter(onnx_op, walk.nodes(graph)):
        for step in changes(node.op, graph.opset, opset):
            if (node.op, step) not in _SAME_MEANING:
                words = f"{node.op} '{label_of(node)}': opset {step} defines it anew"
                raise ModelError(f"the model cannot be raised to opset {opset}: {words}")
    others = [one for one in graph.import_domains or () if one.domain not in STANDARD_DOMAINS]
    for inner in walk.graphs(graph):
        inner.opset = max(inner.opset, opset)
    graph.import_domains = [onnx.helper.make_opsetid("", graph.opset), *others]


def _native(node: gs.Node, names: walk.Names) -> list[gs.Node]:
    """Return the nodes that stand for a node: itself, unless it rounds to a block format."""
    if node.op not in ATTRIBUTES:
        return [node]
    fmt, source, target = _checked(node), node.inputs[0], node.outputs[0]
    element = str(fmt.attributes["element_dtype"])
    kind = _type_of(NATIVE[element])
    axis = int(node.attrs.get("axis", 1)) if source.shape is None or len(source.shape) > 1 else 0
    along = {"axis": axis, "block_size": fmt.block}
    scale = gs.Variable(names.derive(source.name, "scale"), _type_of(SCALE), None)
    low = gs.Variable(names.derive(source.name, "quantized"), kind, source.shape)
    label = label_of(node)
    detach(node)
    attributes = {**along, "output_dtype": kind, "precision": dtypes.FLOAT, "saturate": 1}
    return [
        _block_scale(fmt, axis, names.derive(label, "scale"), source, scale),
        gs.Node("QuantizeLinear", names.derive(label, "quantize"), attributes, [source, scale], [low]),
        gs.Node("DequantizeLinear", label, {**along, "output_dtype": dtypes.FLOAT}, [low, scale], [target]),
    ]


def _block_scale(fmt: Format, axis: int, name: str, source: gs.Tensor, scale: gs.Tensor) -> gs.Node:
    element = ELEMENTS[str(fmt.attributes["element_dtype"])]
    exponent = element.largest_exponent if element.exponent_bits else element.mantissa_bits
    bound = scale_bound(element, str(fmt.attributes.get("scale_rule", "floor")))
    attributes = {"axis": axis, "sizes": [fmt.block], "unit": 2.0**-exponent, "bound": bound}
    return gs.Node(BLOCK_SCALE, name, attributes, [source], [scale], domain=DOMAIN)


def _dequantized(tensor: gs.Constant, fmt: Format, axis: int, names: walk.Names) -> gs.Node:
    """Return the node that makes a weight of its elements and scales, under the name of the weight."""
    source = tensor._values
    weight = gs.Variable(tensor.name, np.dtype(np.float32), list(tensor.shape))
    native = native_weight(load_values(source), fmt, axis)
    assert native is not None, "asked before"

    def part(number: int) -> Callable[[NDArray[np.float32]], NDArray[np.generic]]:
        return lambda values: (native_weight(values, fmt, axis) or native)[number]

    inputs = [
        constant(
            names.derive(tensor.name, suffix),
            exportable(derived(source, part(number), native[number].dtype, native[number].shape)),
        )
        for number, suffix in enumerate(("quantized", "scale"))
    ]
    walk.redirect(tensor, weight)
    tensor.values = np.empty(0, np.float32)  # unused: free its memory
    attributes = {"axis": axis, "block_size": fmt.block, "output_dtype": dtypes.FLOAT}
    return gs.Node("DequantizeLinear", names.derive(weight.name, "dequantize"), attributes, inputs, [weight])


def _type_of(kind: np.dtype[np.generic]) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(kind))

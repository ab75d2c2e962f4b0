"""Weights of block formats stored in their true bits, decoded when a session is created."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from ops.formats import FORMATS, Format
from transforms.features.packed.lanes import BESIDE_LARGE, LARGE
from transforms.features.packed.pack_constant import LastEncoded, PackedConstant, may_be_packed, pack_constant
from transforms.features.packed.unpackers import FIRST_OPSET
from transforms.functions import DOMAIN
from transforms.graph import dtypes, walk
from transforms.graph.block_format import block_format_of
from transforms.graph.constants import Constants
from transforms.graph.lazy_values import Weight, constant, load_values
from transforms.graph.rewire import import_domains
from transforms.model.read_model import ModelError
from transforms.plan.quant_spec import block_axis
from transforms.scheme.sources import recorded_scheme

_LOG = logging.getLogger(__name__)
_OF_A_CALL = 400  # approximate bytes of a node


@dataclass
class PackedWeights:
    """Packed weights by format, their elements, and bytes before and after; unpacked ones by reason."""

    formats: Counter[str] = field(default_factory=Counter)
    elements: int = 0
    before: int = 0
    after: int = 0
    left: Counter[str] = field(default_factory=Counter)


def pack_weights(
    graph: gs.Graph, formats: Sequence[Format] = (), *, done: PackedWeights | None = None
) -> int:
    """Store float32 weights that lie on the grid of a block format in codes of their true bits; return how
    many.

    A weight becomes the output of a node, a call of a function in ONNX's own operators that decodes it to
    the same bits (:mod:`transforms.features.packed.unpackers`); runtimes fold it when a session is created.
    This is the last step before a model is saved: rewrites that read weights have to come before it;
    ``model_io.load`` restores the numbers. ``formats`` are tried, by default those of the model's scheme and
    of its nodes, or those of the table if there are none, with blocks along the axes in which nodes read the
    weight. ``done`` is filled with what was packed, and with the reasons for what was not.

    Does nothing to weights that lie on no grid (including those that nodes round in every run), integers,
    which are already stored in their bits, other float types, formats with more than 8 bits per element,
    inputs, outputs, and weights that packing would not make smaller. Raises ModelError below opset 13.
    """
    walk.check_graph(graph)
    summary = PackedWeights() if done is None else done
    candidates = [fmt for fmt in formats or _formats_of(graph) if fmt.block > 1]
    candidates.sort(key=lambda fmt: fmt.bits)  # a finer grid often holds the numbers of a coarser one
    constants, outputs = Constants(graph), walk.outputs(graph)
    owners, names = walk.constant_owners(graph), walk.Names(graph)
    nodes: dict[int, list[gs.Node]] = {}
    last = LastEncoded()
    sizes = (int(tensor._values.nbytes) // 4 for tensor in walk.constants(graph))
    least_in_lanes = BESIDE_LARGE if max(sizes, default=0) >= LARGE else LARGE
    for tensor in list(walk.constants(graph)):
        if (
            not dtypes.is_type(tensor, dtypes.FLOAT)
            or constants.shape(tensor) is None
            or id(tensor) in outputs
        ):
            continue
        packed, reason = _pack(tensor, candidates, last, least_in_lanes)
        if packed is None:
            summary.left[reason] += 1
            _LOG.debug("'%s' is not packed: %s", tensor.name, reason)
            continue
        if graph.opset < FIRST_OPSET:
            raise ModelError(f"packed weights need opset {FIRST_OPSET}, the model has {graph.opset}")
        summary.formats[packed.format.name] += 1
        summary.elements += int(np.prod(tensor.shape))
        summary.before += int(tensor._values.nbytes)
        summary.after += packed.nbytes
        nodes.setdefault(id(owners[id(tensor)]), []).append(_call(tensor, packed, names))
    for inner in walk.graphs(graph) if nodes else ():
        inner.nodes = [*nodes.get(id(inner), ()), *inner.nodes]
    if nodes:
        import_domains(graph, {DOMAIN})
    return sum(map(len, nodes.values()))


def _formats_of(graph: gs.Graph) -> Sequence[Format]:
    """Return the block formats of a model's scheme and nodes, or those of the table if there are none."""
    scheme = recorded_scheme(graph)
    node_formats = [fmt for node in walk.nodes(graph) if (fmt := block_format_of(node))]
    block_formats = [
        fmt for fmt in (*(scheme.named_formats if scheme else ()), *node_formats) if fmt.block > 1
    ]
    return list({fmt.name: fmt for fmt in block_formats}.values()) or list(FORMATS.values())


def _pack(
    tensor: gs.Constant, candidates: Sequence[Format], last: LastEncoded, least_in_lanes: int
) -> tuple[PackedConstant | None, str]:
    """Return a packed weight and "", or None and the reason."""
    source: Weight = tensor._values
    if not source.shape or source.nbytes < _OF_A_CALL:
        return None, "too small"
    values = load_values(source)
    if not may_be_packed(values):
        return None, "on no grid"
    axes = dict.fromkeys(block_axis(node, index, tensor) % values.ndim for node, index in walk.uses(tensor))
    reason = "on no grid"
    for axis in axes:
        for fmt in candidates:
            packed = pack_constant(source, fmt, axis, last, least_in_lanes=least_in_lanes)
            if packed is not None and packed.nbytes + _OF_A_CALL < source.nbytes:
                return packed, ""
            reason = reason if packed is None else "too small"
    return None, reason


def _call(tensor: gs.Constant, packed: PackedConstant, names: walk.Names) -> gs.Node:
    """Return the node that decodes a weight; its output takes the name of the weight."""
    inputs = [constant(names.derive(tensor.name, suffix), values) for suffix, values in packed.inputs.items()]
    decoded = gs.Variable(tensor.name, np.dtype(np.float32), list(tensor.shape))
    walk.redirect(tensor, decoded)
    tensor.values = np.empty(0, np.float32)  # unused: free its memory
    name = names.derive(tensor.name, "unpack")
    return gs.Node(packed.op, name, dict(packed.attributes), inputs, [decoded], domain=DOMAIN)

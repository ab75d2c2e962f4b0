"""Split biases that hold masks: the ordinary numbers stay, an Add after the layer applies the mask.

A class or token that must never be predicted has a bias of -inf or -1e9. As an int32 such a number would need
a scale that rounds all weights to 0, and it sets the range of the layer's output. An Add of it is computed in
float, like that of any mask (:mod:`transforms.plan.float_only_nodes`), and the tensor before it has the range
of the other numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.graph import dtypes, walk
from transforms.graph.constants import magnitude
from transforms.graph.dot_products import bias, is_dot_product
from transforms.graph.masks import MASK, masks_in
from transforms.graph.rewire import Insertions

_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})


def part_biases(graph: gs.Graph, is_wanted: Callable[[gs.Node], bool]) -> int:
    """Move masks out of the constant biases of layers of the outermost graph; return the number of biases.

    Layers are those of which ``is_wanted`` is true. The bias keeps 0 in the place of a mask, and the result
    of the layer keeps its name as the output of the Add. Masks are infinities, numbers so large that the sum
    loses all fractions, and those from 10000 on among smaller ones. Does nothing to a bias whose numbers are
    all of one kind, such as the offset of a price, nor to a convolution of unknown rank.
    """
    walk.check_graph(graph)
    masked_layers = [node for node in graph.nodes if _has_masks(node) and is_wanted(node)]
    names, insertions, count = walk.Names(graph if masked_layers else None), Insertions(), 0
    for node in masked_layers:
        addend, masked = node.inputs[2], masks_in(node.inputs[2].values)
        values = addend.values
        masks = _as_added(node, np.where(masked, values, np.float32(0)))
        if masks is None:
            continue
        plain = np.where(masked, np.float32(0), values)
        node.inputs[2] = gs.Constant(names.derive(addend.name, "unmasked"), plain)
        insertions.add(graph, node, [_mask(node, masks, addend.name, names)])
        count += 1
    if count:
        insertions.place(graph)
    return count


def _has_masks(node: gs.Node) -> bool:
    addend = bias(node) if is_dot_product(node) else None
    if not isinstance(addend, gs.Constant) or not dtypes.is_type(addend, dtypes.FLOAT):
        return False
    return magnitude(addend.values) >= MASK and bool(masks_in(addend.values).any())


def _as_added(node: gs.Node, masks: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """Return masks in the shape to add to a layer's output; None if its rank is not known."""
    if node.op not in _CONVOLUTIONS:
        beta = np.float32(node.attrs.get("beta", 1.0))
        with np.errstate(over="ignore"):  # as the layer overflows
            return masks * beta
    rank = next((len(t.shape) for t in (node.outputs[0], *node.inputs[:2]) if t.shape is not None), None)
    return None if rank is None else masks.reshape(-1, *[1] * (rank - 2))


def _mask(node: gs.Node, masks: NDArray[np.float32], name: str, names: walk.Names) -> gs.Node:
    """Return the Add of the masks; it takes over the output of the layer, which gets a new one."""
    (output,) = node.outputs
    plain = dtypes.variable(names.derive(output.name, "unmasked"), dtypes.FLOAT, output)
    walk.replace_output(node, output, plain)
    constant = gs.Constant(names.derive(name, "masks"), masks)
    return gs.Node("Add", names.derive(output.name, "mask"), inputs=[plain, constant], outputs=[output])

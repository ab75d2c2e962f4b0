"""Tensors whose outlying channels can be moved into the layers that read them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.left_operands import channels_of, layers_on
from transforms.graph.mixed_channels import HeadFinder, Heads
from transforms.graph.selection import Exclusion, resolve
from transforms.move_outliers import FactorTakers
from transforms.outliers.operand import Operand
from transforms.plan.quant_spec import ACTIVATION, WEIGHT, QuantSite
from transforms.plan.quantization_plan import QuantizationPlan

_MOST_BITS = 8  # of activations: with more, one channel may set the range of all others
_LEAST_CHANNELS = 8


def find_operands(plan: QuantizationPlan, *, exclude: Exclusion = None) -> list[Operand]:
    """Return the operands of a plan, in the order of first use, that are integers of up to 8 bits.

    All layers that multiply the tensor are among them. Left out are inputs of the model, and tensors made in
    integers: dividing their channels would be one more layer of integers, on the range that was to be
    avoided. Channels are not mixed in nodes in ``exclude``.
    """
    zone, takers = plan.specs.integers.zone, FactorTakers(plan.graph)
    heads = HeadFinder(plan.graph, resolve(exclude, plan.graph)).heads()
    return [one for site in plan.quantizations for one in _operands(plan, site, zone, takers, heads)]


def _operands(
    plan: QuantizationPlan, site: QuantSite, zone: set[int], takers: FactorTakers, heads: dict[int, Heads]
) -> Iterator[Operand]:
    grid, tensor = site.steps[-1], site.tensor
    coarse = grid.format.is_integer and grid.format.bits <= _MOST_BITS and len(site.steps) == 1
    if site.role != ACTIVATION or not coarse or not plan.specs.is_in_main_graph(tensor) or not tensor.shape:
        return
    if walk.producer(tensor) is None:
        return
    layers = layers_on(tensor)
    reads = {(id(node), index) for node, index in site.uses}
    if not layers or not all((id(node), 0) in reads for node in layers):
        return
    weights = [plan.specs.of_input(node, 1) for node in layers]
    grids = tuple(spec for spec, role in weights if spec and role == WEIGHT and spec.format.is_integer)
    if len(grids) < len(layers) or channels_of(layers[0]) < _LEAST_CHANNELS:
        return
    own = plan.specs.integers.maker(tensor) is None
    if own or takers.take(tensor, len(layers)):
        may_split = own and all(_ends_in_float(plan, node, zone) for node in layers)
        yield Operand(tensor, tuple(layers), grid, grids, may_split, heads.get(id(tensor)))


def _ends_in_float(plan: QuantizationPlan, node: gs.Node, zone: set[int]) -> bool:
    """Return whether another product can be added to that of a layer without being rounded."""
    result, formats = node.outputs[0], plan.specs.formats
    users = [user for user, _ in walk.uses(result)]
    if walk.is_output(result, plan.graph) or not users or node.attrs.get("alpha", 1.0) != 1:
        return False
    return formats[node] == formats.default and all(user.op == "Add" and id(user) in zone for user in users)

"""Put tensors on given grids, each by its name."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_graphsurgeon as gs

from ops.legal_names import did_you_mean
from transforms.graph import dtypes, walk
from transforms.graph.constants import Constants
from transforms.graph.grids import Grid
from transforms.graph.qdq import DEQUANTIZE, QUANTIZE
from transforms.graph.rewire import Insertions, import_domains
from transforms.graph.shapes import shape_of
from transforms.plan.qdq_writer import QdqWriter, take_name
from transforms.plan.quant_spec import QuantSpec
from transforms.plan.rounding import Rounding
from transforms.plan.rounding_plan import owners
from transforms.scheme.scheme import FLOAT32, Scheme


def write_grids(graph: gs.Graph, grids: Mapping[str, Grid]) -> int:
    """Put each named float32 tensor on its grid for all its readers; return how many were not on one before.

    Raises ValueError for an unknown name, a tensor of another type, and a grid that does not fit its shape;
    the graph is then unchanged.
    """
    places, outputs = owners(graph), walk.outputs(graph)
    tensors = {str(tensor.name): tensor for tensor in _tensors(graph)}
    for name, grid in grids.items():
        if name not in tensors:
            raise ValueError(f"no tensor is named '{name}'{did_you_mean(name, tensors)}")
        grid.check_shape(name, shape_of(tensors[name]))
    constants = Constants(graph)
    unquantized = [name for name in grids if not _is_quantized(tensors[name], constants)]
    for name in unquantized:
        if not dtypes.is_type(tensors[name], dtypes.FLOAT):
            raise ValueError(f"tensor '{name}' cannot be put on a grid: it is not float32")
    writer = QdqWriter(graph, Scheme(activation=FLOAT32, weight=FLOAT32))
    insertions, count = Insertions(), 0
    for name in unquantized:
        tensor = tensors[name]
        owner, producer = places[id(tensor)]
        uses = [(node, index) for node, index in walk.uses(tensor) if node.op not in QUANTIZE]
        site = Rounding(tensor, owner, producer, uses, producer is not None and id(tensor) in outputs)
        if uses or site.is_output:
            insertions.add(owner, producer, _write(writer, site, grids[name], outputs))
            count += 1
    insertions.place(graph)
    import_domains(graph, writer.domains)
    return count


def _tensors(graph: gs.Graph) -> list[gs.Tensor]:
    """Return the tensors of a graph and its bodies; a name refers to the outermost graph that has it."""
    inner_first = [*walk.graphs(graph)][::-1]
    return [tensor for inner in inner_first for tensor in walk.tensors(inner).values()]


def _is_quantized(tensor: gs.Tensor, constants: Constants) -> bool:
    """Return whether a tensor is the output of a dequantizing node, or a constant stored as integers."""
    maker = walk.producer(tensor)
    is_stored = constants.shape(tensor) is not None and not dtypes.is_type(tensor, dtypes.FLOAT)
    readers = [node.op in DEQUANTIZE for node in tensor.outputs]
    return (maker is not None and maker.op in DEQUANTIZE) or (is_stored and bool(readers) and all(readers))


def _write(writer: QdqWriter, site: Rounding, grid: Grid, outputs: set[int]) -> list[gs.Node]:
    """Return the nodes of a grid, which the tensor's readers read from now on."""
    step, parameters = QuantSpec(grid.format, grid.axis, block=grid.block_size), (grid.scale, grid.zero_point)
    if isinstance(site.tensor, gs.Constant):
        target, nodes = writer.store(site.tensor, step, parameters, keep_node=False)
        site.redirect(target)
        take_name(site.tensor, nodes[0].inputs[0], outputs)
        return nodes
    source = site.split_off(writer.names) if site.is_output else site.tensor
    nodes = writer.put(source, step, parameters, site.tensor if site.is_output else None)
    site.redirect(nodes[-1].outputs[0])
    return nodes

"""Which embeddings a scheme stores as integers: those between layers with weights of at most 8 bits.

No layer multiplies by them, and readers of their rows may stay float: a table is stored, not computed with.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.embeddings import is_lookup, is_table
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.scheme_targets import NodeFormats
from transforms.scheme.scheme import POWER_OF_TWO
from transforms.scheme.targets import ON_CPU

_WEIGHT_BITS = 8

_LEAST = 1 << 12  # bytes of float32


def stored_tables(plan: QuantizationPlan) -> list[gs.Constant]:
    """Return the tables of a plan's graph, of 4 KiB or more, to be stored in int8.

    For a smaller one the nodes and scales of an integer lookup outweigh its numbers. Empty if rounding is to
    be written as nodes, if scales have to be powers of two, or for a target other than ONNX Runtime, whose
    compiler may require another form.
    """
    scheme = plan.scheme
    is_elsewhere = scheme.target not in ("", ON_CPU)
    if scheme.keep_weight_nodes or scheme.scale == POWER_OF_TWO or is_elsewhere:
        return []
    tables = (tensor for tensor in walk.constants(plan.graph) if is_table(tensor))
    return [
        table
        for table in tables
        if 4 * table.shape[0] * table.shape[1] >= _LEAST
        and id(table) not in plan.named
        and all(
            _stores_integers(plan.specs.formats[node]) for node in table.outputs if is_lookup(node, table)
        )
    ]


def _stores_integers(formats: NodeFormats) -> bool:
    weight = formats.weight
    computes = formats.wants_integers or formats.dynamic is not None
    return computes and weight is not None and weight.is_integer and weight.bits <= _WEIGHT_BITS

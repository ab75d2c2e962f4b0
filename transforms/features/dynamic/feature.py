"""The feature of products that round their inputs at run time."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from transforms.conversion.rows import Row
from transforms.features.dynamic.float_products import write_float_products
from transforms.features.dynamic.operands import dynamic_operands
from transforms.features.dynamic.products import DynamicProducts
from transforms.features.dynamic.rounded_rows import rounded_rows
from transforms.features.dynamic.worth import multiplies_integers, pays_in_integers
from transforms.features.hooks import Feature
from transforms.graph import walk
from transforms.pipelines.later import later


class Products:
    """Rounding of inputs to uint8, see :class:`transforms.features.hooks.RunTimeProducts`."""

    pays = staticmethod(pays_in_integers)
    multiplies = staticmethod(multiplies_integers)
    operands = staticmethod(dynamic_operands)
    planned = staticmethod(DynamicProducts)


(move_unjudged,) = later(__package__, "probe.move_unjudged")


def roundings(graph: gs.Graph) -> Iterator[gs.Node]:
    """Yield the nodes that compute in float only to round rows."""
    return (node for inner in walk.graphs(graph) for rows in rounded_rows(inner) for node in rows.nodes)


FEATURE = Feature(
    noun="a product that rounds its input at run time",
    rows={"unjudged": (Row(move_unjudged),)},
    products=Products(),
    roundings=roundings,
    write_float=write_float_products,
)
"""The feature of products that round inputs at run time."""

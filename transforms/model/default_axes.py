"""The axes of a MeanVarianceNormalization that says none, written out."""

from __future__ import annotations

import onnx

from transforms.graph.proto_graphs import each_node
from transforms.graph.rewire import STANDARD_DOMAINS

_OPERATOR = "MeanVarianceNormalization"


def write_default_axes(graph: onnx.GraphProto) -> None:
    """Write the default axes of each MeanVarianceNormalization, in place, also inside bodies.

    From opset 13 on the operator is a function whose Constant holds the attribute, and onnx's checker refuses
    the Constant of a node without it.
    """
    for node in each_node(graph):
        is_one = node.op_type == _OPERATOR and node.domain in STANDARD_DOMAINS
        if is_one and all(attribute.name != "axes" for attribute in node.attribute):
            node.attribute.append(onnx.helper.make_attribute("axes", [0, 2, 3]))

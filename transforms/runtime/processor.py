"""What the kernels of the installed ONNX Runtime compute on this processor, asked of them.

The list of instructions that the system shows is no answer: in an emulator it is that of another processor.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from transforms.model.quiet_settings import compute

_TERMS = 64
_LARGEST = np.iinfo(np.uint8).max, np.iinfo(np.int8).max


@cache
def sums_saturate() -> bool:
    """Return whether sums of uint8 by int8 products saturate in pairs at 16 bits (:mod:`ops.pair_sums`).

    They do on x86 without VNNI: 64 products 255 x 127 are 2,072,640, and there 32 x 32,767 = 1,048,544.
    """
    activation, weight = _LARGEST
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    stored = [
        numpy_helper.from_array(np.full((1, _TERMS), activation, np.uint8), "x"),
        numpy_helper.from_array(np.full((_TERMS, 1), weight, np.int8), "w"),
    ]
    ends = [helper.make_tensor_value_info("y", TensorProto.INT32, [1, 1])]
    graph = helper.make_graph([node], "sum", [], ends, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=8)
    return int(compute(model, ["y"])["y"].item()) != _TERMS * activation * weight

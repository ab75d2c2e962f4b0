"""Changes of operator definitions across which an opset may be raised.

An operator may get a new definition in an opset; most only add element types, which the schemas of the onnx
package show. Any other change must be in :data:`CHECKED`, with the reason why every node keeps its meaning,
or be handled by a rule (:mod:`transforms.opset.rules`): all others are refused. The tests compare every
entry with ONNX Runtime, before and after the raise.
"""

from __future__ import annotations

_DEFAULT = "new attributes, whose defaults are the old meaning"
_INPUT = "attributes became inputs, which the converter adds"
_OPTIONAL = "inputs or outputs became optional"
_REFUSED = "the converter refuses the removed attribute"
REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")

CHECKED: dict[tuple[str, int], str] = {
    ("ArgMax", 12): _DEFAULT,
    ("ArgMin", 12): _DEFAULT,
    ("Attention", 24): _OPTIONAL,
    ("Attention", 25): _DEFAULT,
    ("AveragePool", 10): _DEFAULT,
    ("AveragePool", 19): f"{_DEFAULT}; sums in another order",
    ("BatchNormalization", 9): _REFUSED,
    ("BatchNormalization", 14): f"{_DEFAULT} of a node with one output",
    ("Cast", 19): _DEFAULT,
    ("Cast", 24): _DEFAULT,
    ("CastLike", 19): _DEFAULT,
    ("CastLike", 24): _DEFAULT,
    ("Constant", 11): _DEFAULT,
    ("Constant", 12): _DEFAULT,
    ("DFT", 20): _INPUT,
    ("DepthToSpace", 11): _DEFAULT,
    ("DequantizeLinear", 13): _DEFAULT,
    ("DequantizeLinear", 21): _DEFAULT,
    ("DequantizeLinear", 23): _DEFAULT,
    ("Erf", 13): "integers, for which there were no kernels, were removed",
    ("GRU", 14): _DEFAULT,
    ("GatherND", 12): _DEFAULT,
    ("Gemm", 11): _OPTIONAL,
    ("GridSample", 20): "other names of the modes, which the converter writes",
    ("LSTM", 14): _DEFAULT,
    ("Loop", 11): _OPTIONAL,
    ("LpPool", 18): _DEFAULT,
    ("MaxPool", 8): f"{_DEFAULT}, and a new optional output",
    ("MaxPool", 10): _DEFAULT,
    ("OptionalHasElement", 18): _OPTIONAL,
    ("Pad", 18): _OPTIONAL,
    ("QuantizeLinear", 13): _DEFAULT,
    ("QuantizeLinear", 19): _DEFAULT,
    ("QuantizeLinear", 21): _DEFAULT,
    ("QuantizeLinear", 23): _DEFAULT,
    ("RNN", 14): _DEFAULT,
    **{(f"Reduce{name}", 18): _INPUT for name in REDUCTIONS},
    ("ReduceSum", 13): _INPUT,
    ("Reshape", 14): _DEFAULT,
    ("Resize", 18): _DEFAULT,
    ("RoiAlign", 16): "a new attribute, which the converter gives the old meaning",
    ("Scatter", 11): "only the name changed",
    ("ScatterElements", 16): _DEFAULT,
    ("ScatterND", 16): _DEFAULT,
    ("Shape", 15): _DEFAULT,
    ("Slice", 10): _INPUT,
    ("Split", 13): _INPUT,
    ("Split", 18): "the number of outputs became an attribute, which the converter writes",
    ("Squeeze", 13): _INPUT,
    ("TopK", 10): _INPUT,
    ("TopK", 11): _DEFAULT,
    ("Unsqueeze", 13): _INPUT,
}
"""Why a raise keeps the meaning of every node, by operator and the opset that changed its definition."""

ADDED = frozenset(key for key, why in CHECKED.items() if why.startswith((_DEFAULT, _OPTIONAL)))
"""Changes after which the old definition is part of the new one."""

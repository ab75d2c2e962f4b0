"""Float numbers on their last steps to integers: a sample of sound, a pixel, an index of a bin.

32767 is 32768 in bfloat16 and in float16, which a Cast to int16 makes the lowest number there is. So the
steps from the numbers of a net to integers are exact: those with constants, which scale, shift, round and
clip.
"""

from __future__ import annotations

import onnx
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.rewire import STANDARD_DOMAINS

_STEPS = frozenset({"Add", "Sub", "Mul", "Div", "Floor", "Ceil", "Round", "Clip", "Min", "Max"})
_VIEWS = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity"})


def integer_casts(graph: gs.Graph) -> set[int]:
    """Return the ids of the Casts of a graph and its bodies to integers, with the steps before them."""
    found: set[int] = set()
    for node in walk.nodes(graph):
        if node.op == "Cast" and node.domain in STANDARD_DOMAINS and _to_integer(node):
            steps = list(walk.steps_to(node.inputs[0], _is_step))
            if any(step.op in _STEPS for step in steps):
                found |= {id(node), *map(id, steps)}
    return found


def _to_integer(node: gs.Node) -> bool:
    made = node.outputs[0]
    return dtypes.is_discrete(made) and dtypes.element_type(made) not in (
        onnx.TensorProto.BOOL,
        onnx.TensorProto.STRING,
    )


def _is_step(node: gs.Node) -> bool:
    is_float = dtypes.is_type(node.outputs[0], dtypes.FLOAT)
    return is_float and node.op in _STEPS | _VIEWS and node.domain in STANDARD_DOMAINS

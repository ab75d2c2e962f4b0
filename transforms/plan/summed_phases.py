"""Running sums on the way to an angle: the phase of a sound is the sum of its frequencies up to then.

A phase of thousands has to be exact to a fraction of a turn, and what is lost of each frequency adds up over
the samples: so the sums, what they sum up and what they become on the way to Sin or Cos are exact.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.moved_axis import MOVES
from transforms.graph.rewire import STANDARD_DOMAINS

_ANGLES = frozenset({"Sin", "Cos"})
_RUNNING_SUM = "CumSum"
_ON_THE_WAY = MOVES | frozenset(
    {"Add", "Sub", "Mul", "Div", "Mod", "Neg", "Abs", "Floor", "Ceil", "Round", "Sum", "Min", "Max", "Clip"}
    | {"Where", "Cast", "Pad", "Tile", "Resize", "Upsample", _RUNNING_SUM}
)


def summed_phases(graph: gs.Graph) -> set[int]:
    """Return the ids of these sums of a graph and its bodies, of the arithmetic on both sides of them, up to
    the layer or activation that makes the frequencies, and of the sines and cosines.
    """
    found: set[int] = set()
    for node in walk.nodes(graph):
        if node.op in _ANGLES and node.domain in STANDARD_DOMAINS:
            way = walk.makers(node.inputs[:1], _passes)
            if any(one.op == _RUNNING_SUM for one in way.values()):
                found |= {id(node), *way}
    return found


def _passes(node: gs.Node) -> bool:
    return node.op in _ON_THE_WAY and node.domain in STANDARD_DOMAINS

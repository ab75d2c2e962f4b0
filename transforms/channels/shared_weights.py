"""Tensors that one weight is multiplied with at several places, as in a layer that a model uses again.

Their channels are moved alike, or not at all: each further move of a weight is another copy of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from transforms.graph import walk

if TYPE_CHECKING:
    from transforms.channels.propose_moves import Operand


def groups(operands: Sequence[Operand]) -> list[list[Operand]]:
    """Return operands in groups that share weights, directly or through others; most are alone.

    Left out are all of a group with a weight that another node reads too.
    """
    place_of = {id(node): i for i, operand in enumerate(operands) for node in operand.layers}
    group_of, left = list(range(len(operands))), set[int]()
    for i, operand in enumerate(operands):
        for weight in (node.inputs[1] for node in operand.layers):
            if walk.is_read_once(weight):
                continue
            readers = [place_of.get(id(node), -1) for node in weight.outputs]
            if -1 in readers:
                left.add(i)
            joined = {group_of[place] for place in (i, *readers) if place >= 0}
            group_of = [min(joined) if one in joined else one for one in group_of]
    kept = dict.fromkeys(one for one in group_of if one not in {group_of[i] for i in left})
    return [[operands[i] for i, one in enumerate(group_of) if one == key] for key in kept]

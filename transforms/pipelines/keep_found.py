"""Steps that keep the grids on which weights of the float model lie already, or tell of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_graphsurgeon as gs

from transforms.files.spelling import spelled
from transforms.graph import walk
from transforms.graph.found_grids import FoundWeight, found_weight, grid_words, share_lines, weights
from transforms.graph.lazy_values import LARGE, stored_bytes
from transforms.graph.some_names import counted, some_names
from transforms.pipelines.work import Work
from transforms.plan.quant_spec import WEIGHT
from transforms.write_found_grids import write_found_grids
from transforms.write_matmul_nbits import ROUNDED
from transforms.write_qmoe import OPERATOR

_LOOKED_AT = 3
"""Weights that tell whether those of a model lie on grids, if these are not to be kept."""


def keep_found(work: Work) -> None:
    """Write weights on the grids that they are on."""
    found: list[FoundWeight] = []
    write_found_grids(
        work.graph,
        accuracy_level=work.options.accuracy_level,
        exclude=work.named.excluded,
        found=found,
    )
    floats = {tensor.name for tensor in weights(work.graph)}
    work.record.notes += share_lines(found)
    if left := [one.name for one in found if one.is_whole and one.name in floats]:
        work.record.notes.append(f"Float, since no operator reads their grid: {some_names(left)}")
    rounded = [node for node in walk.nodes(work.graph) if node.op == OPERATOR and _rounds(node)]
    if rounded:
        work.record.notes.append(f"Inputs of {counted(len(rounded), 'mixture')} of experts: rounded to int8")
    names = Counter(_format(one) for one in found if one.is_whole and one.name not in floats)
    work.record.tensors.update({(name, WEIGHT): number for name, number in names.items()})


def _rounds(node: gs.Node) -> bool:
    return bool(node.attrs.get("accuracy_level", 0) == ROUNDED)


def _format(found: FoundWeight) -> str:
    """Return the format that a weight is stored in."""
    assert found.grid is not None, "it has one"
    return found.grid.kind.element or f"int{found.grid.kind.bits}"


def note_found(work: Work) -> None:
    """Say so where weights that are to be rounded all lie on grids already, of those looked at."""
    every = [tensor for tensor in weights(work.graph) if stored_bytes(tensor._values) >= LARGE]
    every.sort(key=lambda tensor: stored_bytes(tensor._values))
    picked = np.unique(np.linspace(0, len(every) - 1, min(len(every), _LOOKED_AT)).astype(int))
    found = [found_weight(every[i]) for i in picked]
    if found and all(one.is_whole for one in found):
        kinds = Counter(grid_words(one.grid) for one in found if one.grid is not None)
        words, way = kinds.most_common(1)[0][0], spelled("{config:FOUND}")
        work.record.notes.append(f"Weights were in {words} already: {way} keeps them exactly")

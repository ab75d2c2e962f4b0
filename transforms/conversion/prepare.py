"""Preparing a float model: folding, fusing and widening, before its values are put on coarser grids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from transforms.convert_opset import CAST_TO_BFLOAT16, convert_opset
from transforms.fuse_gelu import find_gelu, fuse_gelu
from transforms.fuse_hardswish import find_hardswish, fuse_hardswish
from transforms.fuse_layernorm import find_layernorm, fuse_layernorm
from transforms.fuse_matmul import fuse_matmul
from transforms.graph import walk
from transforms.graph.selection import NodeSet, Selection
from transforms.graph.typed import info_of
from transforms.model.read_model import ModelError
from transforms.optimize import optimize
from transforms.share_constants import share_constants
from transforms.split_fused import split_fused
from transforms.widen_float16 import widen_float16

_FUSIONS = {
    "LayerNormalization": (17, find_layernorm, fuse_layernorm),
    "Gelu": (20, find_gelu, fuse_gelu),
    "HardSwish": (14, find_hardswish, fuse_hardswish),
}
"""First opset that has the operator, how to count what could become one, and how to make it one."""


@dataclass
class Preparation:
    """The number of fused nodes by operator, and notes for the user."""

    fused: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def prepare(
    graph: gs.Graph,
    exclude: Selection,
    *,
    optimized: bool = True,
    merge_products: bool = False,
    keep_io_types: bool = True,
    newest: int = 0,
    keep_tied: bool = False,
) -> Preparation:
    """Raise a graph to opset 13 at least, compute float16 parts in float32, and optimize it, in place.

    ``optimized`` folds constants and BatchNorm, fuses decomposed LayerNorm, GELU and HardSwish, and takes
    operators of ONNX Runtime's optimizer apart; ``merge_products`` merges MatMuls on one input as well. Nodes
    in ``exclude`` are fused only among themselves. ``newest``: the opset that the graph may not pass, and no
    fusion into an operator of a later one, if not 0. ``keep_tied`` is that of
    :func:`transforms.optimize.optimize`. Raises ModelError if the opset cannot be raised.
    """
    done = Preparation(notes=list(info_of(graph).notes))
    convert_opset(graph, CAST_TO_BFLOAT16, newest=newest)
    if count := split_fused(graph, exclude=exclude, only_unknown=not optimized):
        done.notes.append(f"Operators fused by ONNX Runtime, split into ONNX's own: {count}")
    whole = _hardswishes(graph)
    if optimized:
        _fuse(graph, exclude, done, newest)  # while constants that float16 has rounded are known to be that
    widen_float16(graph, keep_io_types=keep_io_types)
    if optimized:
        _optimize(graph, exclude, done, newest, keep_tied=keep_tied)
        done.fused["HardSwish"] = max(0, _hardswishes(graph) - whole)  # the optimizer took some apart again
    if optimized and merge_products:
        done.fused["MatMul"] += fuse_matmul(graph, exclude=exclude)
    return done


def note_mended(graph: gs.Graph, notes: list[str]) -> None:
    """Add notes on declared shapes that later opsets told to be wrong."""
    notes += [note for note in info_of(graph).notes if note not in notes]


def _hardswishes(graph: gs.Graph) -> int:
    return sum(node.op == "HardSwish" for node in walk.nodes(graph))


def _optimize(
    graph: gs.Graph, exclude: Selection, done: Preparation, newest: int, *, keep_tied: bool
) -> None:
    """Optimize, and fuse again the patterns that folding constants exposed.

    Not before the first fusion, since the optimizer moves Transposes into the middle of a LayerNorm.
    """
    try:
        optimize(graph, exclude=exclude, keep_tied=keep_tied)
    except ModelError as error:
        done.notes.append(f"Not optimized: {error}")
    share_constants(graph)  # of which folding leaves a copy in each body
    _fuse(graph, exclude, done, newest)


def _fuse(graph: gs.Graph, exclude: Selection, done: Preparation, newest: int) -> None:
    fusions = {name: one for name, one in _FUSIONS.items() if not newest or one[0] <= newest}
    newer = [(version, find) for version, find, _ in fusions.values() if version > graph.opset]
    wanted = [version for version, find in newer if _of_one_kind(find, graph, exclude)]
    convert_opset(graph, max(wanted, default=0), newest=newest)
    for name, (_, _, fuse) in fusions.items():
        done.fused[name] += _of_one_kind(fuse, graph, exclude)


def _of_one_kind(fuse: Callable[..., int], graph: gs.Graph, exclude: Selection) -> int:
    """Fuse nodes none of which is excluded, and nodes all of which are; return how many were put together."""
    apart = exclude.resolve_in(graph)
    count = fuse(graph, exclude=apart)
    others = NodeSet(node for node in walk.nodes(graph) if node not in apart)
    return count + fuse(graph, exclude=others) if len(apart) else count

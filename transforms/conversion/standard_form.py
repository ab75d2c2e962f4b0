"""The form of a float model before its values are put on coarser grids: raised, fused, widened, folded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import onnx_graphsurgeon as gs

from transforms.conversion.record import Record
from transforms.conversion.rows import HasGraph, Row, run_rows
from transforms.graph import walk
from transforms.graph.selection import NodeSet, Selection
from transforms.graph.typed import info_of
from transforms.model.read_model import ModelError

_HARD_SWISHES = "HardSwish fused"

CAST_TO_BFLOAT16 = 13
"""First opset in which Cast, and operators that only move data, accept bfloat16."""

FUSED_BY_RUNTIME = frozenset(
    {"LayerNormalization", "SimplifiedLayerNormalization", "Attention", "BiasGelu", "FastGelu", "Gelu"}
    | {"EmbedLayerNormalization", "FusedConv", "FusedGemm", "FusedMatMul", "MultiHeadAttention"}
    | {"QuickGelu", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"}
)
"""The operators of :data:`transforms.split_fused.FUSED`, which is slow to import."""


@dataclass(frozen=True)
class StandardForm:
    """Options of bringing a float model into this form.

    ``optimized``: fold constants and BatchNorm, fuse decomposed LayerNorm, GELU and HardSwish, and split
    operators of ONNX Runtime's optimizer; ``merge_products``: also merge MatMuls with the same input;
    ``keep_io_types``: inputs and outputs in float16 stay so; ``newest``: if not 0, the highest opset of the
    graph, which also excludes fusions into operators of later ones; ``keep_tied``: that of
    :func:`transforms.optimize.optimize`.
    """

    optimized: bool = True
    merge_products: bool = False
    keep_io_types: bool = True
    newest: int = 0
    keep_tied: bool = False


class Formed(HasGraph, Protocol):
    """A graph on its way into the form."""

    @property
    def form(self) -> StandardForm:
        """The options of the form."""

    @property
    def exclude(self) -> Selection:
        """Nodes that are fused only among themselves."""


@dataclass
class Forming:
    """A graph alone, with the form's options, nodes that are fused only among themselves, and the record."""

    graph: gs.Graph
    exclude: Selection
    form: StandardForm = field(default_factory=StandardForm)
    record: Record = field(default_factory=Record)


def standardize(graph: gs.Graph, exclude: Selection, form: StandardForm | None = None) -> Record:
    """Bring a graph into the form, in place; return the record. ModelError if the opset cannot be raised."""
    forming = Forming(graph, exclude, form or StandardForm())
    run_rows(forming, STANDARD)
    return forming.record


def note_mended(graph: gs.Graph, notes: list[str]) -> None:
    """Add notes on declared shapes that later opsets showed to be wrong."""
    notes += [note for note in info_of(graph).notes if note not in notes]


def raise_to_13(work: Formed) -> None:
    """Raise the graph to the first opset with bfloat16."""
    work.record.notes += info_of(work.graph).notes
    _raise(work.graph, CAST_TO_BFLOAT16, work.form.newest)


def split_runtime_operators(work: Formed) -> None:
    """Split operators of ONNX Runtime's optimizer into standard ones."""
    from transforms.split_fused import split_fused

    if count := split_fused(work.graph, exclude=work.exclude, only_unknown=not work.form.optimized):
        work.record.notes.append(f"Operators fused by ONNX Runtime, split into ONNX's own: {count}")


def fuse_layernorms(work: Formed) -> int:
    """Fuse decomposed LayerNormalizations."""
    from transforms.fuse_layernorm import OPSET, find_layernorm, fuse_layernorm

    return _fused(work, OPSET, find_layernorm, fuse_layernorm)


def fuse_gelus(work: Formed) -> int:
    """Fuse decomposed GELUs."""
    from transforms.fuse_gelu import OPSET, find_gelu, fuse_gelu

    return _fused(work, OPSET, find_gelu, fuse_gelu)


def fuse_hardswishes(work: Formed) -> int:
    """Fuse decomposed HardSwishes."""
    from transforms.fuse_hardswish import OPSET, find_hardswish, fuse_hardswish

    return _fused(work, OPSET, find_hardswish, fuse_hardswish)


def widen_halves(work: Formed) -> None:
    """Compute in float32 where the model computes in float16."""
    from transforms.widen_float16 import widen_float16

    widen_float16(work.graph, keep_io_types=work.form.keep_io_types)


def fold(work: Formed) -> None:
    """Optimize the graph, and share equal constants, of which folding leaves a copy in each body."""
    from transforms.optimize import optimize
    from transforms.share_constants import share_constants

    graph, before = work.graph, _hardswishes(work.graph)
    try:
        optimize(graph, exclude=work.exclude, keep_tied=work.form.keep_tied)
    except ModelError as error:
        work.record.notes.append(f"Not optimized: {error}")
    if taken_apart := before - _hardswishes(graph):
        work.record.changes[_HARD_SWISHES] -= taken_apart
    share_constants(graph)


def merge_products(work: Formed) -> int:
    """Merge MatMuls that multiply the same tensor."""
    from transforms.fuse_matmul import fuse_matmul

    return fuse_matmul(work.graph, exclude=work.exclude)


def _is_optimized(work: Formed) -> bool:
    return work.form.optimized


def _merges(work: Formed) -> bool:
    return work.form.optimized and work.form.merge_products


def _fusions(*after: str) -> tuple[Row[Formed], ...]:
    return (
        Row(
            fuse_layernorms,
            frozenset({"ReduceMean", "ReduceSum"}),
            _is_optimized,
            after=after,
            line="LayerNormalization fused",
        ),
        Row(fuse_gelus, frozenset({"Erf", "Tanh"}), _is_optimized, after=after, line="Gelu fused"),
        Row(
            fuse_hardswishes,
            frozenset({"Clip", "HardSigmoid"}),
            _is_optimized,
            after=after,
            line=_HARD_SWISHES,
        ),
    )


STANDARD: tuple[Row[Formed], ...] = (
    Row(raise_to_13),
    Row(split_runtime_operators, FUSED_BY_RUNTIME, after=("raise_to_13",)),
    # while constants rounded to float16 are known as such, and Transposes are in their original place
    *_fusions("split_runtime_operators"),
    Row(widen_halves, after=("fuse_layernorms", "fuse_gelus", "fuse_hardswishes")),
    Row(fold, when=_is_optimized, after=("widen_halves",)),
    *_fusions("fold"),  # of patterns exposed by folding
    Row(merge_products, frozenset({"MatMul"}), _merges, after=("fold",), line="MatMul fused"),
)
"""Raises a graph to at least opset 13, computes float16 parts in float32, and optimizes it."""


def _raise(graph: gs.Graph, version: int, newest: int) -> None:
    if graph.opset < version:
        from transforms.convert_opset import convert_opset

        convert_opset(graph, version, newest=newest)


def _hardswishes(graph: gs.Graph) -> int:
    return sum(node.op == "HardSwish" for node in walk.nodes(graph))


def _fused(work: Formed, version: int, find: Callable[..., int], fuse: Callable[..., int]) -> int:
    """Fuse nodes none of which is excluded, and nodes all of which are; return the number of fusions.

    The graph is raised to the opset with the operator, if that is allowed and there is something to fuse.
    """
    graph, newest = work.graph, work.form.newest
    if newest and version > newest:
        return 0
    if version > graph.opset:
        if not _of_one_kind(find, graph, work.exclude):
            return 0
        _raise(graph, version, newest)
    return _of_one_kind(fuse, graph, work.exclude)


def _of_one_kind(fuse: Callable[..., int], graph: gs.Graph, exclude: Selection) -> int:
    apart = exclude.resolve_in(graph)
    count = fuse(graph, exclude=apart)
    others = NodeSet(node for node in walk.nodes(graph) if node not in apart)
    return count + fuse(graph, exclude=others) if len(apart) else count

"""Moves of channels: outliers into weights, and channels between layers to similar ranges.

Layers propose, by their own errors on rows of samples; the judge decides by the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Float32Array
from transforms.graph import walk
from transforms.graph.some_names import counted
from transforms.judge.constants import ENOUGH, FEW_SAMPLES, FLOAT, MAY_LOSE, ROWS, WORTH
from transforms.model.copy_graph import copy_graph
from transforms.moves.improve import Best
from transforms.scheme.outlier_move import OutlierMove

_NORMS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})
_PRODUCTS = frozenset({"MatMul", "Gemm"})


def try_outliers(best: Best) -> None:
    """Move outliers of what layers multiply if the outputs are better for it.

    They are those of transformers: other networks, without products of normalized rows, have none to move
    where ranges are measured.
    """
    if not _is_open(best) or len(best.form.judge.reference.feeds) < FEW_SAMPLES:
        return
    if not best.asked.is_dynamic and not _is_transformer(best.form.graph):
        return
    from transforms.channels.propose_moves import find_operands, propose_moves

    plan = best.form.plan_of(best.form.graph, best.scheme)
    operands = find_operands(plan)
    if not operands or not _is_allowed(best, "outliers"):
        return
    names = list(dict.fromkeys(str(one.tensor.name) for one in operands))
    clips = best.scheme.calibrate_method != "MinMax"
    _try(best, "outliers", propose_moves(operands, _rows(best, names), clips=clips))


def _is_transformer(graph: gs.Graph) -> bool:
    """Return whether a graph has operators of transformers: normalizations of rows, and products."""
    operators = {node.op for node in walk.nodes(graph)}
    return bool(operators & _NORMS and operators & _PRODUCTS)


def try_equalized(best: Best) -> None:
    """Equalize layers, where rules would do so, if the outputs are better for it."""
    if best.asked.equalize_layers is True or not best.asked.by_rule().equalize_layers:
        return
    from transforms.equalize_layers import equalize_layers

    graph = copy_graph(best.form.graph)
    if (count := equalize_layers(graph, exclude=best.exclude)) and _is_allowed(best, "equalized layers"):
        form = best.form.rewritten(graph, best.form.scheme.with_(equalize_layers=True), best.measure)
        if form is not None:
            best.try_form("equalized layers", f"{counted(count, 'pair')} of layers equalized", form, WORTH)


def try_rotated(best: Best) -> None:
    """Rotate the channels of a language model's states, unless outputs are worse: it costs nothing."""
    is_asked = best.asked.move_outliers or best.asked.keep_float
    if not is_asked or best.asked.outliers or best.form.scheme.rotate_channels:
        return
    has_rows = any(node.op == "Gather" for node in walk.nodes(best.form.graph))  # of an embedding
    if not has_rows or not _is_transformer(best.form.graph):
        return
    from transforms.rotate_channels import rotate_channels

    graph = copy_graph(best.form.graph)
    if not (count := rotate_channels(graph)) or not _is_allowed(best, "rotated channels"):
        return
    form = best.form.rewritten(graph, best.form.scheme.with_(rotate_channels=True), best.measure)
    if form is not None:
        best.try_form("rotated channels", f"{counted(count, 'weight')} with rotated channels", form, None)


def try_channels(best: Best) -> None:
    """Scale channels between convolutions, without a target by a Mul too, if outputs are better for it."""
    if not _is_open(best):
        return
    from transforms.channels.propose_scales import find_sites, levels_of, propose_scales, sizes_of

    levels = levels_of(best.scheme)
    sites = find_sites(best.form.graph, exclude=best.exclude) if levels else []
    if best.asked.target:
        _note_gates(best, sum(bool(site.gate) for site in sites))
        sites = [site for site in sites if not site.gate]
    if levels is None or not sites or not _is_allowed(best, "channels"):
        return
    sizes = sizes_of(sites)
    best.form.rest()
    best.form.judge.reference.watch(list(sizes), lambda name, array: sizes[name].add(array), FEW_SAMPLES)
    _try(best, "channels", propose_scales(sites, sizes, levels=levels))


def _note_gates(best: Best, count: int) -> None:
    """Note tensors that are not scaled: with the Muls, a YOLOX gains 1 dB and takes 1.15 times as long."""
    if count:
        reason = "not scaled for a target, which takes a Mul for each"
        best.decisions.notes.append(f"channels: {counted(count, 'tensor')} {reason}")


def _is_open(best: Best) -> bool:
    """Return whether outliers may move, and the scheme names none itself."""
    return best.asked.move_outliers and not best.asked.outliers


def _is_allowed(best: Best, move: str) -> bool:
    """Return whether there are runs to look at tensors, to calibrate another form, and to judge it."""
    count = best.form.judge.count
    allowed = best.budget.allows(count + len(best.form.judge.reference.feeds) * 2 // FLOAT, models=2)
    if not allowed:
        best.decisions.left.append((move, ""))
    return allowed


def _try(best: Best, move: str, found: Mapping[str, OutlierMove]) -> None:
    if not found:
        return
    moves = {name: str(one) for name, one in found.items()}
    graph, scheme = copy_graph(best.form.graph), best.scheme
    best.rewrite(graph, scheme.with_(outliers=moves))
    form = best.form.rewritten(graph, scheme.with_(outliers={**scheme.outliers, **moves}), best.measure)
    if form is not None:
        best.try_form(move, f"{move} of {counted(len(found), 'tensor')} moved", form, MAY_LOSE)


def _rows(best: Best, names: Sequence[str]) -> dict[str, list[Float32Array]]:
    """Return rows of tensors of the float model, evenly spread, of each of the first samples."""
    best.form.rest()
    reference = best.form.judge.reference
    count = min(len(reference.feeds), ENOUGH)
    found: dict[str, list[Float32Array]] = {name: [] for name in names}
    each = max(1, ROWS // count)
    reference.watch(names, lambda name, array: found[name].append(some_rows(array, each)), count)
    return found


def some_rows(array: Float32Array, count: int) -> Float32Array:
    """Return a copy of some rows of a tensor, along its last axis, evenly spread."""
    rows = array.reshape(-1, array.shape[-1])
    if len(rows) <= count:
        return rows.copy()
    return rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]

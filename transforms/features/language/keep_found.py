"""Steps that keep weights of the float model on the grids of an earlier quantization."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs

from transforms.files.spelling import spelled
from transforms.graph import walk
from transforms.graph.embeddings import is_table
from transforms.graph.found_grids import FoundWeight, found_weight, grid_words, share_lines, weights
from transforms.graph.lazy_values import LARGE, stored_bytes
from transforms.graph.qdq import QMOE
from transforms.graph.some_names import counted, some_names
from transforms.pipelines.work import Work
from transforms.plan.quant_spec import WEIGHT
from transforms.scheme import Scheme
from transforms.scheme.scheme import FOUND
from transforms.scheme.targets import ON_CPU
from transforms.write_found_grids import write_found_grids
from transforms.write_matmul_nbits import ROUNDED

_LOOKED_AT = 3
"""Weights to examine first: most models have none on a grid."""

_OTHER_BITS = {4: 6, 8: 8}
"""By bits of a scheme, the largest mean number of bits with which weights stay as they are."""

_ENOUGH = 0.95
"""Least share of the numbers of products that must be on grids."""


def keep_found(work: Work) -> None:
    """Write weights in integers or 8-bit floats on the grids of their numbers."""
    grid_weights: list[FoundWeight] = []
    write_found_grids(
        work.graph,
        accuracy_level=work.options.accuracy_level,
        exclude=work.named.excluded,
        found=grid_weights,
    )
    floats = {tensor.name for tensor in weights(work.graph)}
    work.record.notes += share_lines(grid_weights)
    if left := [weight.name for weight in grid_weights if weight.is_whole and weight.name in floats]:
        work.record.notes.append(f"Float, since no operator reads their grid: {some_names(left)}")
    rounded = [node for node in walk.nodes(work.graph) if node.op == QMOE and _rounds(node)]
    if rounded:
        work.record.notes.append(f"Inputs of {counted(len(rounded), 'mixture')} of experts: rounded to int8")
    names = Counter(
        _format(weight) for weight in grid_weights if weight.is_whole and weight.name not in floats
    )
    work.record.tensors.update({(name, WEIGHT): number for name, number in names.items()})


def _rounds(node: gs.Node) -> bool:
    return bool(node.attrs.get("accuracy_level", 0) == ROUNDED)


def _format(found: FoundWeight) -> str:
    """Return the format in which a weight is stored."""
    assert found.grid is not None, "it has one"
    return found.grid.kind.element or f"int{found.grid.kind.bits}"


def take_found(work: Work) -> None:
    """Switch to the scheme FOUND if weights to be rounded are on grids with as few bits; report it.

    Otherwise report the grid if all examined weights have one.
    """
    large = [tensor for tensor in weights(work.graph) if stored_bytes(tensor._values) >= LARGE]
    products = sorted(
        (tensor for tensor in large if not is_table(tensor)), key=lambda tensor: stored_bytes(tensor._values)
    )
    picked = np.unique(np.linspace(0, len(products) - 1, min(len(products), _LOOKED_AT)).astype(int))
    probed = {products[i].name: found_weight(products[i]) for i in picked}
    if sum(weight.is_whole for weight in probed.values()) * 2 <= len(probed):
        return
    if _may_take(work):
        by_name = {tensor.name: probed.get(tensor.name) or found_weight(tensor) for tensor in large}
        if _is_enough([by_name[tensor.name] for tensor in products], work.scheme):
            _take(work, list(by_name.values()))
            return
    if not all(weight.is_whole for weight in probed.values()):
        return
    kinds = Counter(grid_words(weight.grid) for weight in probed.values() if weight.grid is not None)
    words, way = kinds.most_common(1)[0][0], spelled("{config:FOUND}")
    work.record.notes.append(f"Weights were in {words} already: {way} keeps them exactly")


def _may_take(work: Work) -> bool:
    """Return whether the request has nothing that would be lost if weights stayed on their grids."""
    asked, options = work.asked, work.options
    weight = asked.format(asked.weight)
    rules = asked.layers, asked.tensors, asked.auto_mixed_precision, asked.finetune
    forms = asked.op_types, asked.opset, asked.qdq_domain, asked.keep_weight_nodes
    job_options = options.tuning, options.fixed, options.goal
    is_here = asked.target in ("", ON_CPU) and asked.fit_weights is not True
    return (
        is_here
        and weight is not None
        and weight.bits in _OTHER_BITS
        and not any((*rules, *forms, *job_options))
    )


def _is_enough(found: list[FoundWeight], scheme: Scheme) -> bool:
    """Return whether nearly all numbers of products are on grids, with few enough bits in the mean."""
    weight = scheme.format(scheme.weight)
    grids = [(one.size, one.grid.bits) for one in found if one.is_whole and one.grid is not None]
    sizes = sum(size for size, _ in grids)
    if weight is None or not sizes or sizes < _ENOUGH * sum(one.size for one in found):
        return False
    return sum(size * bits for size, bits in grids) <= sizes * _OTHER_BITS[int(weight.bits)]


def _take(work: Work, grid_weights: list[FoundWeight]) -> None:
    bits = [weight.grid.bits for weight in grid_weights if weight.is_whole and weight.grid is not None]
    range_of = f"{min(bits)} to {max(bits)}" if min(bits) < max(bits) else f"{max(bits)}"
    are_all, count = len(bits) == len(grid_weights), counted(len(grid_weights), "weight")
    which = f"All {count} were" if are_all and grid_weights[1:] else f"{len(bits)} of {count} were"
    which, left = which if grid_weights[1:] else "Its weight was", "" if are_all else ", the others in float"
    how = f"stored as they are, no loss{left}; {spelled('{assignments:found=false}')} rounds them"
    work.record.notes.append(f"{which} in {range_of} bits: {how}")
    keys = {"block_size": 0, "per_channel": False, "weight_symmetric": True, "finer_share": 0.0}
    work.asked, work.scheme = (scheme.with_(weight=FOUND, **keys) for scheme in (work.asked, work.scheme))
    # products are written as MatMulNBits, whose accuracy level a later row chooses
    work.options = replace(work.options, matmul_nbits=True)

"""Part of a step: write mixtures of experts in the bits that the scheme has for weights."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.experts.find_mixtures import mixtures
from transforms.experts.written_out import written_out
from transforms.files.spelling import as_option
from transforms.graph import walk
from transforms.graph.moe import is_moe
from transforms.graph.selection import NodeSet
from transforms.graph.some_names import counted
from transforms.pipelines.work import Work
from transforms.plan.scheme_targets import FormatTable
from transforms.write_qmoe import BITS, LEAST_BLOCK, OPERATOR, write_qmoe

_IN_FINER_BLOCKS = 4
"""Bits of experts whose blocks have half the size of others: their kernel is as fast, and has 1.5 dB more."""


def has_experts(graph: gs.Graph) -> bool:
    """Return whether a model has experts that can be stored in integers."""
    return any(True for inner in walk.graphs(graph) for _ in mixtures(inner))


def store_experts(work: Work) -> list[str]:
    """Write experts in place, each mixture in the bits that the scheme has for its weights; return lines.

    Without ``matmul_nbits`` they stay in float, which is said.
    """
    nodes = _by_bits(work)
    if not work.options.matmul_nbits:
        kept = counted(sum(map(len, nodes.values())), "mixture")
        return [f"In float: {kept} of experts; {as_option('matmul_nbits')} stores them"] if nodes else []
    lines = []
    for (bits, share), wanted in nodes.items():
        block = max(work.scheme.block_size >> (bits == _IN_FINER_BLOCKS), LEAST_BLOCK)
        level, before = work.options.accuracy_level, _written(work.graph)
        count = write_qmoe(
            work.graph, bits, block, accuracy_level=level, finer_share=share, nodes=NodeSet(wanted)
        )
        others = len(wanted) - count
        left = f", {others} in float: ONNX Runtime's CPU provider has no kernel" if others else ""
        lines.append(f"Written as QMoE: {counted(count, 'mixture')} of experts, {bits} bits{left}")
        if (finer := _written(work.graph) - before - count) > 0:
            words = f"Inner numbers of experts that count most in 8 bits: {counted(finer, 'mixture')}"
            lines.append(f"{words}; finer_share={share:.3g}")
    return lines


def _written(graph: gs.Graph) -> int:
    """Return how many nodes compute experts from integers."""
    return sum(node.op == OPERATOR for node in walk.nodes(graph))


def _by_bits(work: Work) -> dict[tuple[int, float], list[gs.Node]]:
    """Return the mixtures of a model by the bits of their weights and the share of finer ones.

    Both are the scheme's; a rule that names the format of a mixture leaves no finer ones.
    """
    nodes = [node for node in walk.nodes(work.graph) if is_moe(node)]
    nodes += [
        node for inner in walk.graphs(work.graph) for one in written_out(inner) for node in one.nodes[-1:]
    ]
    if not nodes:
        return {}
    formats = FormatTable(work.graph, work.scheme, work.named.resolve_in(work.graph))
    found: dict[tuple[int, float], list[gs.Node]] = {}
    for node in nodes:
        weight = formats[node].weight
        if weight is not None and weight.is_integer and weight.bits in BITS:
            share = 0.0 if id(node) in formats.naming_weights else work.scheme.finer_share
            found.setdefault((int(weight.bits), share), []).append(node)
    return found

"""Row: write mixtures of experts with the scheme's bits for weights."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.features.experts.operators import is_moe
from transforms.files.spelling import as_option
from transforms.graph import walk
from transforms.graph.selection import NodeSet
from transforms.graph.some_names import counted
from transforms.pipelines.work import Work
from transforms.plan.scheme_targets import FormatTable
from transforms.write_qmoe import BITS, LEAST_BLOCK, write_qmoe

_IN_FINER_BLOCKS = 4
"""Bits of experts whose blocks are halved: their kernel is as fast, and accuracy rises by 1.5 dB."""


def store_experts(work: Work) -> None:
    """Write mixtures of experts as QMoE in place, each with the scheme's bits for its weights.

    Without ``matmul_nbits`` they stay in float, which is reported.
    """
    nodes = _by_bits(work)
    if nodes and not work.options.matmul_nbits:
        mixtures = counted(sum(map(len, nodes.values())), "mixture")
        work.record.stored.append(f"In float: {mixtures} of experts; {as_option('matmul_nbits')} stores them")
        return
    for bits, wanted in nodes.items():
        block = max(work.scheme.block_size >> (bits == _IN_FINER_BLOCKS), LEAST_BLOCK)
        level = work.options.accuracy_level
        count = write_qmoe(work.graph, bits, block, accuracy_level=level, nodes=NodeSet(wanted))
        in_float = len(wanted) - count
        left = f", {in_float} in float: ONNX Runtime's CPU provider has no kernel" if in_float else ""
        written = f"{counted(count, 'mixture')} of experts, {bits} bits{left}"
        work.record.stored.append(f"Written as QMoE: {written}")


def _by_bits(work: Work) -> dict[int, list[gs.Node]]:
    """Return the mixtures of a model by the scheme's bits for their weights."""
    nodes = [node for node in walk.nodes(work.graph) if is_moe(node)]
    if not nodes:
        return {}
    formats = FormatTable(work.graph, work.scheme, work.named.resolve_in(work.graph))
    by_bits: dict[int, list[gs.Node]] = {}
    for node in nodes:
        weight = formats[node].weight
        if weight is not None and weight.is_integer and weight.bits in BITS:
            by_bits.setdefault(int(weight.bits), []).append(node)
    return by_bits

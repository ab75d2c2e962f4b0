"""Step: write parts of the quantized model as operators of ONNX Runtime."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.files.spelling import as_option
from transforms.graph import walk
from transforms.graph.selection import NodeSet, label_of, matches
from transforms.graph.some_names import counted
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.store_caches import store_caches
from transforms.pipelines.store_experts import store_experts
from transforms.pipelines.work import Work
from transforms.scheme import Scheme
from transforms.scheme.scheme import FOUND
from transforms.store_embeddings import OPERATOR, store_embeddings, tie_embeddings
from transforms.write_matmul_nbits import write_matmul_nbits


def write_for_runtime(work: Work) -> None:
    """Write products, embeddings and caches as the options say; a head in float reads its table.

    The record has lines on it. Raises ValueError for a model without an embedding or a cache that can be
    stored so.
    """
    options, lines = work.options, work.record.stored
    tie_embeddings(work.graph)
    lines += store_experts(work)
    is_found = work.scheme.weight == FOUND  # which writes products and embeddings for the runtime itself
    if options.matmul_nbits and not is_found:
        lines.append(_write_nbits(work.graph, options.accuracy_level))
    if options.embeddings:
        excluded = work.stored_apart or work.asked
        kept = NodeSet(node for node in walk.nodes(work.graph) if _is_excluded(node, excluded))
        level = options.accuracy_level
        count = store_embeddings(work.graph, options.embeddings, accuracy_level=level, exclude=kept)
        if not count and not (is_found and any(node.op == OPERATOR for node in walk.nodes(work.graph))):
            reason = f"'{work.source}' has no embedding that can be stored so"
            raise ValueError(f"{as_option('embeddings', options.embeddings)}: {reason}")
        if count:
            lines.append(f"Stored in {options.embeddings}: {counted(count, 'embedding')}")
    if options.kv_cache:
        lines += store_caches(work)
    if options.storage != "plain" and work.may_compare and work.data is not None:
        work.unstored = copy_graph(work.graph)  # another form of the same numbers may have no kernels here


def _is_excluded(node: gs.Node, scheme: Scheme) -> bool:
    by_name = any(matches(label_of(node), pattern) for pattern in scheme.exclude_nodes)
    return by_name or node.op in scheme.exclude_op_types


def _write_nbits(graph: gs.Graph, accuracy_level: int | None) -> str:
    count = write_matmul_nbits(graph, accuracy_level=accuracy_level)
    left = sum(node.op == "DequantizeLinear" and "block_size" in node.attrs for node in walk.nodes(graph))
    others = f", {counted(left, 'weight')} in blocks with DequantizeLinear" if left else ""
    return f"Written as MatMulNBits: {counted(count, 'product')}{others}"

"""Steps that write parts of the quantized model as operators of ONNX Runtime, as the options say.

The record has lines on them.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.conversion.rows import run_feature_rows
from transforms.files.spelling import as_option
from transforms.graph import walk
from transforms.graph.qdq import GATHER_BLOCKS
from transforms.graph.selection import NodeSet, label_of, matches
from transforms.graph.some_names import counted
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.work import Work
from transforms.scheme import Scheme
from transforms.scheme.scheme import FLOAT32, FOUND


def tie_heads(work: Work) -> int:
    """Let a head in float read its table."""
    from transforms.store_embeddings import tie_embeddings

    return tie_embeddings(work.graph)


def store_features(work: Work) -> None:
    """Enter the rows that features have for the form in which their parts are stored."""
    run_feature_rows(work, "store")


def write_products(work: Work) -> None:
    """Write products with weights in blocks as MatMulNBits."""
    from transforms.write_matmul_nbits import write_matmul_nbits

    graph = work.graph
    count = write_matmul_nbits(graph, accuracy_level=work.options.accuracy_level)
    left = sum(node.op == "DequantizeLinear" and "block_size" in node.attrs for node in walk.nodes(graph))
    others = f", {counted(left, 'weight')} in blocks with DequantizeLinear" if left else ""
    work.record.stored.append(f"Written as MatMulNBits: {counted(count, 'product')}{others}")


def spend_little(work: Work) -> None:
    """Make the changes that cost outputs little on random tokens: tables in int8, inputs that are rounded.

    Tables that heads read too, beside weights in few bits; then the accuracy level of products in 4 bits,
    where neither an option nor a goal is in the way.
    """
    from transforms.pipelines.random_cost import RandomCost

    options, costs = work.options, RandomCost(work)
    if work.scheme.activation == FLOAT32 and options.stores_tied:
        from transforms.pipelines.tied_tables import store_tied

        store_tied(work, costs)
    if options.matmul_nbits and options.accuracy_level is None and options.goal is None:
        from transforms.pipelines.levels import choose_level

        choose_level(work, costs)


def write_embeddings(work: Work) -> None:
    """Store embeddings in few bits; ValueError for a model without one that can be stored so."""
    from transforms.store_embeddings import store_embeddings

    form, excluded = work.options.embeddings, work.record.asked or work.asked
    kept = NodeSet(node for node in walk.nodes(work.graph) if _is_excluded(node, excluded))
    count = store_embeddings(work.graph, form, accuracy_level=work.options.accuracy_level, exclude=kept)
    are_found = is_found(work) and any(node.op == GATHER_BLOCKS for node in walk.nodes(work.graph))
    if not count and not are_found:
        reason = f"'{work.source}' has no embedding that can be stored so"
        raise ValueError(f"{as_option('embeddings', form)}: {reason}")
    if count:
        work.record.stored.append(f"Stored in {form}: {counted(count, 'embedding')}")


def write_caches(work: Work) -> None:
    """Store caches in few bits; ValueError for a model without one that can be stored so."""
    from transforms.pipelines.store_caches import store_caches

    work.record.stored += store_caches(work)


def keep_unstored(work: Work) -> None:
    """Keep the graph before weights get another form, for which this machine may have no kernels."""
    work.record.unstored = copy_graph(work.graph)


def is_found(work: Work) -> bool:
    """Return whether the scheme keeps grids, which writes products and embeddings for the runtime itself."""
    return work.scheme.weight == FOUND


def _is_excluded(node: gs.Node, scheme: Scheme) -> bool:
    by_name = any(matches(label_of(node), pattern) for pattern in scheme.exclude_nodes)
    return by_name or node.op in scheme.exclude_op_types

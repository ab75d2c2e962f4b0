"""Steps that write products and embeddings as operators of ONNX Runtime, as requested, and report it."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.files.spelling import as_option
from transforms.graph import walk
from transforms.graph.qdq import GATHER_BLOCKS
from transforms.graph.selection import NodeSet, label_of, matches
from transforms.graph.some_names import counted
from transforms.pipelines.work import Work
from transforms.scheme import Scheme
from transforms.scheme.scheme import FOUND


def write_products(work: Work) -> None:
    """Write products with weights in blocks as MatMulNBits."""
    from transforms.write_matmul_nbits import write_matmul_nbits

    graph = work.graph
    count = write_matmul_nbits(graph, accuracy_level=work.options.accuracy_level)
    left = sum(node.op == "DequantizeLinear" and "block_size" in node.attrs for node in walk.nodes(graph))
    others = f", {counted(left, 'weight')} in blocks with DequantizeLinear" if left else ""
    work.record.stored.append(f"Written as MatMulNBits: {counted(count, 'product')}{others}")


def spend_little(work: Work) -> None:
    """Make the changes that cost outputs little on random tokens.

    Stores tables tied to heads in int8, beside weights in few bits; then sets the accuracy level of products.
    """
    from transforms.features.language.levels import choose_level
    from transforms.features.language.random_cost import RandomCost
    from transforms.features.language.tied_tables import store_tied

    costs = RandomCost(work)
    store_tied(work, costs)
    choose_level(work, costs)


def write_embeddings(work: Work) -> None:
    """Store embeddings in few bits; raise ValueError for a model without one that can be stored."""
    from transforms.store_embeddings import store_embeddings

    form, excluded = work.options.embeddings, work.record.asked or work.asked
    excluded_nodes = NodeSet(node for node in walk.nodes(work.graph) if _is_excluded(node, excluded))
    count = store_embeddings(
        work.graph, form, accuracy_level=work.options.accuracy_level, exclude=excluded_nodes
    )
    are_found = work.scheme.weight == FOUND and any(
        node.op == GATHER_BLOCKS for node in walk.nodes(work.graph)
    )
    if not count and not are_found:
        reason = f"'{work.source}' has no embedding that can be stored so"
        raise ValueError(f"{as_option('embeddings', form)}: {reason}")
    if count:
        work.record.stored.append(f"Stored in {form}: {counted(count, 'embedding')}")


def _is_excluded(node: gs.Node, scheme: Scheme) -> bool:
    by_name = any(matches(label_of(node), pattern) for pattern in scheme.exclude_nodes)
    return by_name or node.op in scheme.exclude_op_types

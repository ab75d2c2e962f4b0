"""Step: store embeddings tied to heads in int8 beside weights in few bits, if that costs little."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ops.integers import quantize, weight_scale
from transforms.features.language.random_cost import MOST, RandomCost
from transforms.files.spelling import spelled
from transforms.graph import dtypes, walk
from transforms.graph.constants import load
from transforms.graph.dot_products import bias
from transforms.graph.embeddings import heads, is_lookup, is_tied
from transforms.graph.qdq import DEQUANTIZE_LINEAR
from transforms.graph.rewire import Insertions, remove_unused
from transforms.graph.selection import NodeSet, label_of, matches
from transforms.graph.some_names import counted, some_names
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.asked import stores_tied
from transforms.pipelines.work import Work
from transforms.quantize_tables import quantize_tables
from transforms.store_embeddings import store_embeddings, why_not_stored

_LEAST_NUMBERS = 1 << 14
_BLOCK = 16


def store_tied(work: Work, costs_of: RandomCost) -> None:
    """Store tied tables in int8 if outputs on random tokens change by less than .02 nats or 33 dB; report it.

    With ``matmul_nbits`` they are first tried as MatMulNBits, then with ONNX's DequantizeLinear. Nothing is
    measured where outputs may not be compared.
    """
    tables = _wanted(work) if stores_tied(work) else []
    if not tables:
        return
    names, costs = {str(table.name) for table in tables}, list[float]()
    for in_blocks in (True, False) if work.options.matmul_nbits else (False,):
        graph = copy_graph(work.graph)
        _write(work, graph, names, in_blocks=in_blocks)
        cost = costs_of.of(graph) if work.options.may_compare else 0.0
        if cost is not None and cost < MOST:
            measured = f", {cost:.2g} nats on random tokens" if work.options.may_compare else ""
            subject, option = counted(len(tables), "tied embedding"), spelled("{embeddings:float} keeps it")
            work.record.stored.append(f"Stored in int8 with its head: {subject}{measured}; {option}")
            work.graph = graph
            costs_of.take(cost)
            return
        costs += [] if cost is None else [cost]
    why = f"in int8 it costs {min(costs):.2g} nats" if costs else "int8 cannot be tried"
    way = spelled("{embeddings:int8} stores it")
    work.record.notes.append(f"Float, {some_names(sorted(names))}: {why} on random tokens; {way}")


def _wanted(work: Work) -> list[gs.Constant]:
    """Return the tied tables that are large enough and that the scheme does not name."""
    scheme, graph = work.scheme, work.graph
    patterns = (*scheme.exclude_nodes, *scheme.layers)
    named_nodes = NodeSet(
        node
        for node in walk.nodes(graph)
        if node.op in (*scheme.exclude_op_types, *scheme.layers)
        or any(matches(label_of(node), pattern) for pattern in patterns)
    )
    outputs = walk.outputs(graph)
    return [
        table
        for table in walk.constants(graph)
        if is_tied(table)
        and table.name not in scheme.tensors
        and table._values.nbytes >= 4 * _LEAST_NUMBERS
        and not why_not_stored(table, _BLOCK, outputs, named_nodes)
    ]


def _write(work: Work, graph: gs.Graph, names: set[str], *, in_blocks: bool) -> None:
    tables = [tensor for tensor in walk.constants(graph) if tensor.name in names]
    if in_blocks:
        read = {id(node) for table in tables for node in table.outputs}
        read |= {id(head) for table in tables for node in table.outputs for head in heads(node, table)}
        other_nodes = NodeSet(node for node in walk.nodes(graph) if id(node) not in read)
        store_embeddings(graph, "int8", accuracy_level=work.options.accuracy_level, exclude=other_nodes)
        return
    dequantized = [_dequantize_for_heads(graph, table) for table in tables]
    quantize_tables(graph, tables)
    for node in dequantized:  # lookups read its scales: the runtime's kernel for products needs its own
        scale = node.inputs[1]
        node.inputs[1] = gs.Constant(walk.Names(graph).derive(str(scale.name), "of_head"), scale.values)


def _dequantize_for_heads(graph: gs.Graph, table: gs.Constant) -> gs.Node:
    """Let heads multiply by dequantized integers with a scale for each row; return the dequantizing node.

    Lookups still read floats. Gemms become MatMuls, for which the runtime has a kernel with such weights.
    """
    names, values, insertions = walk.Names(graph), load(table), Insertions()
    scale = weight_scale(values, "int8", 0)
    zeros = np.zeros(len(scale), np.int8)
    turned = np.ascontiguousarray(quantize(values, scale, zeros, "int8", 0).T)
    stored = (("quantized", turned), ("scale", scale), ("zero_point", zeros))
    inputs = [gs.Constant(names.derive(table.name, suffix), array) for suffix, array in stored]
    weight = gs.Variable(names.derive(table.name, "dequantized"), np.float32, list(table.shape)[::-1])
    label = names.derive(weight.name, DEQUANTIZE_LINEAR)
    node = gs.Node(DEQUANTIZE_LINEAR, label, {"axis": 1}, inputs, [weight])
    insertions.add(graph, None, [node])
    users = [user for user in table.outputs if not is_lookup(user, table)]
    for head in [head for user in users for head in heads(user, table)]:
        if head.op == "Gemm":
            _become_product(graph, head, names, insertions)
        head.inputs[1] = weight
    insertions.place(graph)
    for owner in walk.graphs(graph):
        remove_unused(
            owner, [candidate for candidate in owner.nodes if any(candidate is user for user in users)]
        )
    return node


def _become_product(graph: gs.Graph, head: gs.Node, names: walk.Names, insertions: Insertions) -> None:
    """Replace a Gemm without factors by a MatMul and an Add of its bias."""
    added, result = bias(head), head.outputs[0]
    head.op, head.attrs, head.inputs = "MatMul", {}, head.inputs[:2]
    if added is not None:
        head.outputs = [dtypes.variable(names.derive(result.name, "product"), dtypes.FLOAT, result)]
        label = names.derive(label_of(head), "bias")
        insertions.add(graph, head, [gs.Node("Add", label, {}, [head.outputs[0], added], [result])])

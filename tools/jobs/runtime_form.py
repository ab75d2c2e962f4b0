"""Parts of a quantized model that are written as operators of ONNX Runtime."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from tools.cli.said import say
from tools.jobs.kv_cache import store_caches
from tools.jobs.quantize_options import QuantizeJob
from transforms.graph import walk
from transforms.graph.selection import NodeSet, label_of, matches
from transforms.graph.some_names import counted
from transforms.scheme import Scheme
from transforms.store_embeddings import store_embeddings, tie_embeddings
from transforms.write_matmul_nbits import write_matmul_nbits


def write_for_runtime(job: QuantizeJob, scheme: Scheme, graph: gs.Graph) -> None:
    """Write what has operators of ONNX Runtime as these, and say so; a head in float reads its table."""
    tie_embeddings(graph)
    if job.matmul_nbits:
        _write_nbits(graph, job.accuracy_level)
    if job.embeddings:
        kept = NodeSet(node for node in walk.nodes(graph) if _is_excluded(node, scheme))
        level = job.accuracy_level
        count = store_embeddings(graph, job.embeddings, accuracy_level=level, exclude=kept)
        if not count:
            raise ValueError(
                f"--embeddings {job.embeddings}: '{job.input}' has no embedding that can be stored so"
            )
        say(f"Stored in {job.embeddings}: {counted(count, 'embedding')}")
    if job.kv_cache:
        store_caches(graph, job)


def _is_excluded(node: gs.Node, scheme: Scheme) -> bool:
    by_name = any(matches(label_of(node), pattern) for pattern in scheme.exclude_nodes)
    return by_name or node.op in scheme.exclude_op_types


def _write_nbits(graph: gs.Graph, accuracy_level: int | None) -> None:
    count = write_matmul_nbits(graph, accuracy_level=accuracy_level)
    left = sum(node.op == "DequantizeLinear" and "block_size" in node.attrs for node in walk.nodes(graph))
    others = f", {counted(left, 'weight')} in blocks with DequantizeLinear" if left else ""
    say(f"Written as MatMulNBits: {counted(count, 'product')}{others}")

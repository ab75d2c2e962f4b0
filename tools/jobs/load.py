"""Loading the model of a job, with the shapes that its command line gives to inputs."""

from __future__ import annotations

from collections.abc import Mapping
from glob import escape

import onnx_graphsurgeon as gs

from tools.cli.said import say
from tools.jobs.quantize_options import QuantizeJob
from tools.summaries.target import refuse_free
from transforms import model_io
from transforms.fix_shapes import fix_shapes
from transforms.graph.embeddings import readers
from transforms.graph.selection import label_of
from transforms.graph.some_names import counted
from transforms.scheme import Scheme
from transforms.scheme.scheme import FLOAT32
from transforms.scheme.targets import target
from transforms.store_embeddings import tie_embeddings


def load_model(path: str, scheme: Scheme) -> gs.Graph:
    """Load a model as a scheme wants it; ValueError for free dimensions that its target does not take."""
    graph = load_fixed(path, scheme.input_shapes)
    if scheme.target:
        refuse_free(graph, target(scheme.target))
    return graph


def load_for(job: QuantizeJob, scheme: Scheme) -> gs.Graph:
    """Load the model of a job as a scheme wants it; embeddings that are to be stored in few bits are tied.

    Raises as :func:`load_model` does.
    """
    graph = load_model(job.input, scheme)
    if job.embeddings:
        tie_embeddings(graph)
    return graph


def apart_from_embeddings(graph: gs.Graph, scheme: Scheme) -> Scheme:
    """Return a scheme that leaves embeddings and heads tied to them as they are, to be stored in few bits.

    One of weights alone does so without a word.
    """
    if scheme.activation == FLOAT32:
        return scheme
    labels = dict.fromkeys(escape(label_of(node)) for node in readers(graph))
    return scheme.with_(exclude_nodes=(*scheme.exclude_nodes, *labels))


def load_fixed(path: str, shapes: Mapping[str, tuple[int, ...]]) -> gs.Graph:
    """Load a model, fix the shapes of inputs, and say how many dimensions that were, if any.

    Raises what :func:`transforms.model_io.load` and :func:`transforms.fix_shapes.fix_shapes` do.
    """
    graph = model_io.load(path)
    fixed = fix_shapes(graph, shapes)
    if fixed:
        say(f"Fixed: {counted(fixed, 'free dimension')} of inputs")
    return graph

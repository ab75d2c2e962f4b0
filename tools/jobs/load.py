"""Loading the model of a job, with the shapes that its command line gives to inputs."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_graphsurgeon as gs

from tools.cli.said import say
from tools.jobs.quantize_options import QuantizeJob
from tools.summaries.target import refuse_free
from transforms import model_io
from transforms.fix_shapes import fix_shapes
from transforms.graph.some_names import counted
from transforms.scheme import Scheme
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


def load_fixed(path: str, shapes: Mapping[str, tuple[int, ...]]) -> gs.Graph:
    """Load a model, fix the shapes of inputs, and say how many dimensions that were, if any.

    Raises what :func:`transforms.model_io.load` and :func:`transforms.fix_shapes.fix_shapes` do.
    """
    graph = model_io.load(path)
    fixed = fix_shapes(graph, shapes)
    if fixed:
        say(f"Fixed: {counted(fixed, 'free dimension')} of inputs")
    return graph

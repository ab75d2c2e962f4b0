"""Loading the model of a job, with the shapes that its command line gives to inputs."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_graphsurgeon as gs

from tools.cli.said import say
from transforms import model_io
from transforms.fix_shapes import fix_shapes
from transforms.graph.some_names import counted


def load_fixed(path: str, shapes: Mapping[str, tuple[int, ...]]) -> gs.Graph:
    """Load a model, fix the shapes of inputs, and say how many dimensions that were, if any.

    Raises what :func:`transforms.model_io.load` and :func:`transforms.fix_shapes.fix_shapes` do.
    """
    graph = model_io.load(path)
    fixed = fix_shapes(graph, shapes)
    if fixed:
        say(f"Fixed: {counted(fixed, 'free dimension')} of inputs")
    return graph

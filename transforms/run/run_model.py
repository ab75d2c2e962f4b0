"""Opening a model on any provider: nodes of bfloat16 without a kernel are widened to float32."""

from __future__ import annotations

import logging
from pathlib import Path

import onnx_graphsurgeon as gs

from transforms import model_io
from transforms.runtime.session import MissingKernelError, OpenModel, RunOptions, start_session
from transforms.widen_bf16 import widen_bf16

__all__ = ["OpenModel", "RunOptions", "open_model"]

log = logging.getLogger(__name__)

_BFLOAT16 = "tensor(bfloat16)"


def open_model(source: str | Path | gs.Graph, options: RunOptions | None = None) -> OpenModel:
    """Return a model of any size, a file or a graph, ready to run; a graph may be changed by this.

    Our operators are registered. A model with bfloat16 nodes for which the provider has no kernels is run
    with these nodes between Casts in memory (:func:`transforms.widen_bf16.widen_bf16`); bfloat16 inputs
    and outputs are then float32. Raises ValueError if the runtime refuses the model or has no such
    provider, OSError if the file cannot be read.
    """
    try:
        session, weights = start_session(source, options)
        arguments = (*session.get_inputs(), *session.get_outputs())
        if all(argument.type != _BFLOAT16 for argument in arguments):
            return OpenModel(session, weights)
    except MissingKernelError as error:
        log.debug("%s", error)
    graph = source if isinstance(source, gs.Graph) else model_io.load(source)
    widened = widen_bf16(graph)
    return OpenModel(*start_session(graph, options), widened)

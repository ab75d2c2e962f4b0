"""Open a model on any provider; bfloat16 nodes without a kernel are widened to float32."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import numpy as np
import onnx_graphsurgeon as gs
import onnxruntime as ort

from ops.array_types import Feed
from transforms import model_io
from transforms.files.paths import AnyPath
from transforms.model.read_model import ModelError
from transforms.runtime.session import MissingKernelError, OpenModel, RunOptions, start_session

__all__ = ["OpenModel", "Run", "RunOptions", "open_model"]

Run = Callable[[Feed], Feed]
"""Runs a model on a feed."""

log = logging.getLogger(__name__)

_BFLOAT16 = "tensor(bfloat16)"

_BEFORE_BFLOAT16 = 21
"""Last opset before many operators took bfloat16 in definitions that change nothing else: for some operators
the runtime only has kernels of the earlier definitions."""


def open_model(source: AnyPath | gs.Graph, options: RunOptions | None = None) -> OpenModel:
    """Open a model of any size, from a file or a graph; the graph may be changed.

    Our operators are registered. bfloat16 nodes for which the provider has no kernels run between Casts in
    memory (:func:`transforms.widen_bf16.widen_bf16`); bfloat16 inputs and outputs are then float32.
    Operators with kernels only for older opsets, such as RandomNormalLike, run at such an opset. Raises
    ValueError if the runtime refuses the model or has no such provider, OSError if the file cannot be read.
    """
    try:
        session, weights = start_session(source, options)
        arguments = (*session.get_inputs(), *session.get_outputs())
        if all(argument.type != _BFLOAT16 for argument in arguments):
            return OpenModel(session, weights)
    except MissingKernelError as error:
        log.debug("%s", error)
    graph = source if isinstance(source, gs.Graph) else model_io.load(source)
    from transforms.widen_bf16 import widen_bf16

    widened = widen_bf16(graph)
    return OpenModel(*_start_widened(graph, widened, options), widened)


def _start_widened(
    graph: gs.Graph, widened: int, options: RunOptions | None
) -> tuple[ort.InferenceSession, Mapping[str, np.ndarray]]:
    """Open a session on a widened graph, at an older opset if the runtime only has kernels for that."""
    try:
        return start_session(graph, options)
    except MissingKernelError as error:
        if not widened:
            raise
        try:
            from transforms.lower_opset import lower_opset

            lower_opset(graph, _BEFORE_BFLOAT16)
        except ModelError:
            raise error from None
        return start_session(graph, options)

"""Loading and saving models as graphs, for rewrites of :mod:`transforms`."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_graphsurgeon as gs

from onnx_narrow.api.result import Result
from onnx_narrow.api.written import checked_path
from transforms import model_io
from transforms.files.paths import AnyPath


def load(source: AnyPath | onnx.ModelProto) -> gs.Graph:
    """Return a model as a graph, with types and shapes.

    Raises ModelError (a ValueError) or OSError.

    Examples
    --------
    >>> import onnx_narrow
    >>> len(onnx_narrow.load("tests/examples/digits.onnx").nodes)
    8
    """
    return model_io.load(source)


def save(
    model: gs.Graph | onnx.ModelProto | Result,
    path: AnyPath,
    *,
    force: bool = False,
    external_data: bool = False,
) -> list[Path]:
    """Write a model, whole or not at all, and return its files.

    Raises FileExistsError for an existing file unless ``force``, ModelError or OSError.
    """
    content = model.model if isinstance(model, Result) else model
    graph = model_io.load(content) if isinstance(content, onnx.ModelProto) else content
    checked = checked_path(path, force=force, external_data=external_data)
    return model_io.save(graph, checked, force=force, external_data=external_data)

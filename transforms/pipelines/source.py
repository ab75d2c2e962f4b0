"""The float model of a job: a file, a proto or a graph."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_graphsurgeon as gs

from transforms import model_io
from transforms.graph.typed import Graph, source_files
from transforms.model.copy_graph import copy_graph
from transforms.run.run_model import open_model
from transforms.runtime.session import OpenModel, RunOptions


class Source:
    """A model that each call reads again and never changes: a file, a proto or a graph in memory."""

    def __init__(self, model: str | Path | onnx.ModelProto | gs.Graph) -> None:
        """Read nothing yet. Raises TypeError for anything else."""
        if not isinstance(model, str | Path | onnx.ModelProto | gs.Graph):
            kind = type(model).__name__
            raise TypeError(f"a model is a path, a ModelProto, a Graph or a Result, not {kind}")
        self._model = model
        self._graph: Graph | None = model_io.load(model) if isinstance(model, onnx.ModelProto) else None

    @property
    def path(self) -> Path | None:
        """The file, None for a model in memory."""
        return Path(self._model) if isinstance(self._model, str | Path) else None

    def __str__(self) -> str:
        return str(self.path or "model in memory")

    def load(self) -> gs.Graph:
        """Return the model as a new graph. Raises ModelError (a ValueError) or OSError."""
        if self.path is not None:
            return model_io.load(self.path)
        graph = self._model if isinstance(self._model, gs.Graph) else self._graph
        assert graph is not None, "read before"
        return copy_graph(graph)

    def open(self, options: RunOptions | None = None) -> OpenModel:
        """Return the model in a session. Raises as :func:`transforms.run.run_model.open_model` does."""
        return open_model(self.path or self.load(), options)

    def stored_bytes(self, graph: gs.Graph) -> int:
        """Return the bytes of the files that a graph was read from, or about those of the model in memory."""
        if isinstance(self._model, onnx.ModelProto):
            return self._model.ByteSize()
        if self.path is None:
            return model_io.bytes_written(self.load())
        files = source_files(graph)
        return sum(path.stat().st_size for path in (files if self.path in files else [self.path]))

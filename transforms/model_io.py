"""Loading and saving models: the only module that touches model files.

A model goes in as a path or as an ``onnx.ModelProto``, neither of which is ever changed, and comes out whole
or not at all: everything is checked before the first byte is written, files are written under another name,
flushed to disk and renamed, external data before the model that refers to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from transforms import graph_proto, light_model
from transforms.atomic_write import replacing
from transforms.read_model import ModelError, check_opsets, read

__all__ = ["ModelError", "check", "check_output", "files_of", "load", "refuse_source", "save"]

PROTOBUF_LIMIT = (1 << 31) - (1 << 20)
"""Bytes above which a model can not be one protobuf message, with room for what surrounds the weights."""

_ALIGNMENT = 4096  # runtimes map external data into memory by pages


def load(source: str | Path | onnx.ModelProto) -> gs.Graph:
    """Return a model as a graph with types and shapes inferred, ready for transforms and :func:`save`.

    ``graph.info`` holds the metadata that graph-surgeon does not keep; ``graph.source_sha256`` and
    ``graph.source_files`` tell where the graph came from. Raises ModelError (a ValueError) or OSError.
    """
    if isinstance(source, onnx.ModelProto):
        check_opsets(source)
        graph = graph_proto.import_model(source)
        graph.source_sha256, graph.source_files = None, []
        return graph
    model, digest, files = read(Path(source))
    graph = graph_proto.import_model(model)
    graph.source_sha256, graph.source_files = digest, files
    return graph


def check_output(
    path: str | Path, source: str | Path | None = None, *, force: bool = False, external_data: bool = False
) -> Path:
    """Return the path to write to, or raise before any work is done.

    Raises OSError when the folder does not exist or can not be written to, ValueError when the path is a
    folder, is the source itself (also by another name), or exists and ``force`` is not given; same for the
    file of weights beside it where ``external_data`` asks for one.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"output '{path}' is a folder, not a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"output folder '{path.parent}' does not exist")
    if source is not None and path.exists() and path.samefile(source):
        raise ValueError(f"output '{path}' is the input itself, which is never overwritten")
    for file in files_of(path)[: 1 + external_data]:
        if file.exists() and not force:
            raise FileExistsError(f"output '{file}' exists; --force overwrites it")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"output folder '{path.parent}' is not writable")
    return path


def save(
    graph: gs.Graph,
    path: str | Path,
    *,
    metadata: Mapping[str, str] | None = None,
    external_data: bool = False,
    force: bool = True,
) -> list[Path]:
    """Check the graph as a model and write it; return the files written, the model first.

    Weights go to ``NAME.data`` beside the model when ``external_data`` is given or the model would pass the
    2 GiB limit of protobuf. ``metadata`` is added to the model's metadata_props. Raises ModelError when the
    model does not pass ``onnx.checker`` with full_check, ValueError when a file of the source would be
    overwritten, OSError when writing fails or, without ``force``, a file exists; nothing changes then.
    """
    path = Path(path)
    light, weights = graph_proto.export_light(graph)
    properties = {entry.key: entry.value for entry in light.metadata_props} | dict(metadata or {})
    onnx.helper.set_model_props(light, properties)
    check(light, weights)
    total = light.ByteSize() + sum(array.nbytes for array in weights.values())
    external_data = external_data or total > PROTOBUF_LIMIT
    check_output(path, force=force, external_data=external_data)
    data_path = files_of(path)[1]
    refuse_source(graph, path)
    if not external_data:
        light_model.fill(light, weights)
        with replacing(path) as (temporary,):
            _write(temporary, light.SerializeToString(deterministic=True))
        return [path]
    _refer_to_external(light, weights, data_path.name)
    with replacing(data_path, path) as (data_file, model_file):
        _write_arrays(data_file, (weights[t.name] for t in light.graph.initializer if t.name in weights))
        _write(model_file, light.SerializeToString(deterministic=True))
    return [path, data_path]


def files_of(path: Path) -> tuple[Path, Path]:
    """Return the files that a model may be written to: its own, and the one of external data beside it."""
    return path, path.with_name(path.name + ".data")


def check(light: onnx.ModelProto, weights: Mapping[str, np.ndarray]) -> None:
    """Raise ModelError when a light model does not pass ``onnx.checker.check_model(full_check=True)``."""
    try:
        onnx.checker.check_model(light_model.as_inputs(light, dict(weights)), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(f"the result does not pass onnx.checker: {error}") from error


def refuse_source(graph: gs.Graph, path: Path) -> None:
    """Raise ValueError where writing a model to ``path`` would overwrite a file that a graph came from."""
    for source in getattr(graph, "source_files", []):
        for target in files_of(path):
            if target.exists() and target.samefile(source):
                raise ValueError(f"'{target}' belongs to the input, which is never overwritten")


def _write(path: Path, data: bytes) -> None:
    _write_arrays(path, iter([np.frombuffer(data, np.uint8)]))


def _write_arrays(path: Path, arrays: Iterator[np.ndarray]) -> None:
    """Write arrays one after another, each at a multiple of the alignment, and flush them to disk."""
    with path.open("xb") as file:
        for array in arrays:
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())


def _refer_to_external(light: onnx.ModelProto, weights: Mapping[str, np.ndarray], location: str) -> None:
    """Point the initializers at the places in the data file where ``_write_arrays`` puts them."""
    offset = 0
    for tensor in light.graph.initializer:
        if tensor.name not in weights:
            continue
        offset += -offset % _ALIGNMENT
        length = weights[tensor.name].nbytes
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        offset += length

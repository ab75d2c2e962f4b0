"""Read a model's file without its weights; external data may be missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.external_data_helper as external
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from transforms.files.external_file import external_file
from transforms.files.mapped_file import map_file
from transforms.graph.lazy_values import Weight, load_values
from transforms.model.mapped_weights import is_heavy, parse_in_place, weight_at
from transforms.model.read_model import ModelError, read_bytes, tensors

_LARGEST_FILE = (1 << 31) - 1

IN_MEMORY = Path("model in memory")
"""Placeholder for the path of a model that is not in a file."""


@dataclass(frozen=True)
class LightFile:
    """A model whose large initializers have no data, those in files by name, and the files.

    ``files``: the model's file and those of external data with their bytes, None for a file that is missing,
    or not read for the reason in ``unread``. A model in memory has the path ``IN_MEMORY``.
    """

    path: Path
    model: onnx.ModelProto
    mapped: dict[str, Weight]
    files: dict[str, int | None]
    unread: dict[str, str]


def read_light(source: Path | onnx.ModelProto) -> LightFile:
    """Read the visible parts of a model. Raises ModelError for other files, OSError without access."""
    path = source if isinstance(source, Path) else IN_MEMORY
    content = _content(source)
    try:
        model, mapped = parse_in_place(content)
    except DecodeError:
        raise ModelError(f"'{path}' is not an ONNX model, or is cut short") from None
    if not model.opset_import or not (model.graph.node or model.graph.output):
        raise ModelError(f"'{path}' is not an ONNX model: it has no graph")
    light = LightFile(path, model, mapped, {path.name: content.size}, {})
    for tensor in tensors(model):
        if tensor.name not in mapped and external.uses_external_data(tensor):
            _add_external(light, tensor)
    return light


def _content(source: Path | onnx.ModelProto) -> NDArray[np.uint8]:
    """Return the bytes of a model, read-only."""
    if not isinstance(source, Path):
        return np.frombuffer(source.SerializeToString(), np.uint8)
    if source.is_file() and 0 < source.stat().st_size <= _LARGEST_FILE:
        return map_file(source)
    read_bytes(source)  # raises the appropriate error
    raise ModelError(f"'{source}' is not an ONNX model: it is empty")


def _add_external(light: LightFile, tensor: onnx.TensorProto) -> None:
    """Record the file named by a tensor, and the tensor's array if it is large."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    try:
        file = external_file(light.path, location)
    except ValueError as error:
        light.files[location], light.unread[location] = None, str(error)
        return
    light.files[location] = file.stat().st_size
    if is_heavy(tensor) and tensor.name:
        weight = _weight(tensor, file, entries)
        if weight is not None:
            light.mapped[tensor.name] = weight


def _weight(tensor: onnx.TensorProto, file: Path, entries: dict[str, str]) -> Weight | None:
    """Return the array of a tensor in a file, or None if the file does not contain it."""
    try:
        offset = int(entries.get("offset", 0))
        return weight_at(map_file(file), offset, tensor) if offset >= 0 else None
    except ValueError:
        return None


def read_constant(tensor: onnx.TensorProto, mapped: Mapping[str, Weight]) -> np.ndarray | None:
    """Return the numbers of a constant of a light file, None if its data are missing or inconsistent."""
    if tensor.name in mapped:
        return np.asarray(load_values(mapped[tensor.name]))
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    try:
        return onnx.numpy_helper.to_array(tensor)
    except ValueError:
        return None

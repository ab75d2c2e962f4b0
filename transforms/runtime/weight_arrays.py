"""The weights of a model as a session reads them: arrays where they are, or places in files that it maps.

Computed weights that would not fit into memory are written to a file first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper

from transforms.files import cleanup
from transforms.files.mapped_file import map_file, place_of
from transforms.graph import dtypes
from transforms.graph.lazy_values import PACKED, Computed, Weight, load_values
from transforms.model import detached_weights

_ALIGNMENT = 4096  # weights are mapped by pages
_FOLDER = "session.model_external_initializers_file_folder_path"
_NOWHERE = "memory"  # a location that is never read: the arrays take its place
_SHARED_KINDS = "fiub"  # NumPy's own types, which the runtime takes as they are
_MOST_TRANSPOSED = 200_000_000
"""Bytes of a weight above which it is not transposed when a session is opened; no such model is timed."""

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_TYPED = "ortvalue_from_numpy_with_onnx_type"  # not in the oldest versions


@contextmanager
def weight_arrays(weights: Mapping[str, Weight], *, in_file: bool) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield weights as arrays; computed ones in memory, or ``in_file``.

    They are computed and written one at a time, and mapped. The file has a name during the block alone, in
    which it can be opened; the arrays are good for longer. Raises OSError if it cannot be written.
    """
    computed = {name: w for name, w in weights.items() if isinstance(w, Computed) and w.dtype not in PACKED}
    if not computed or not in_file:
        yield {name: load_values(weight) for name, weight in weights.items()}
        return
    with cleanup.temporary_folder() as folder:
        mapped = _written(computed, folder / "weights")
        yield {name: mapped[name] if name in mapped else load_values(w) for name, w in weights.items()}


def share_weights(
    light: onnx.ModelProto, weights: Mapping[str, np.ndarray], settings: ort.SessionOptions
) -> None:
    """Let the runtime find the arrays where they are; those that it cannot read go into the model.

    Initializers refer to the files that are mapped, of which ``settings`` names a folder that encloses all.
    """
    place_by_name = {name: place_of(array) for name, array in weights.items()}
    places = {name: place for name, place in place_by_name.items() if place is not None}
    if places:
        folder = Path(os.path.commonpath([place.path.parent for place in places.values()]))
        settings.add_session_config_entry(_FOLDER, str(folder))
    rest = {name: array for name, array in weights.items() if name not in places}
    shared = {name: array for name, array in rest.items() if _is_shareable(array)}
    detached_weights.fill(light, {name: array for name, array in rest.items() if name not in shared})
    for tensor in light.graph.initializer:
        if tensor.name in places:
            place = places[tensor.name]
            location = place.path.relative_to(folder).as_posix()
            _refer(tensor, location=location, offset=place.offset, length=place.length)
        elif tensor.name in shared:
            _refer(tensor, location=_NOWHERE)
    settings.add_external_initializers(list(shared), [_value_of(array) for array in shared.values()])
    _leave_transposed(light.graph, weights)


def _leave_transposed(graph: onnx.GraphProto, weights: Mapping[str, np.ndarray]) -> None:
    """Let tables that a Transpose reads be what a caller may replace: the runtime then copies none of them.

    It would transpose the table of an output layer tied to embeddings when the session is opened, and copy
    that into the order of its kernels. Now a product reads the table as it is.
    """
    read = {name for node in graph.node if node.op_type == "Transpose" for name in node.input}
    fed = {value.name for value in graph.input}
    for name in sorted(read & weights.keys() - fed):
        if weights[name].nbytes > _MOST_TRANSPOSED:
            kind = helper.np_dtype_to_tensor_dtype(weights[name].dtype)
            shape = weights[name].shape
            graph.input.append(helper.make_tensor_value_info(name, kind, shape))


def _refer(tensor: onnx.TensorProto, **entries: object) -> None:
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))


def _is_shareable(array: np.ndarray) -> bool:
    """Return whether the runtime can read an array where it is."""
    kind = array.dtype.kind in _SHARED_KINDS or (array.dtype == _BFLOAT16 and hasattr(ort.OrtValue, _TYPED))
    return kind and array.flags.c_contiguous


def _value_of(array: np.ndarray) -> ort.OrtValue:
    """Return the runtime's view of an array that it can read where it is."""
    if array.dtype != _BFLOAT16:
        return ort.OrtValue.ortvalue_from_numpy(array)
    return getattr(ort.OrtValue, _TYPED)(array.view(np.uint16), dtypes.BFLOAT16)


def _written(weights: Mapping[str, Computed], path: Path) -> dict[str, NDArray[Any]]:
    places: dict[str, int] = {}
    with path.open("wb") as file:
        for name, weight in weights.items():
            file.write(bytes(-file.tell() % _ALIGNMENT))
            places[name] = file.tell()
            weight.load().tofile(file)
    content = map_file(path)
    return {
        name: content[place : place + weights[name].nbytes]
        .view(weights[name].dtype)
        .reshape(weights[name].shape)
        for name, place in places.items()
    }

"""Weights in mapped files handed to ONNX Runtime by their places there, so that it maps them as well."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from transforms.files.mapped_file import FilePlace, place_of

_FOLDER = "session.model_external_initializers_file_folder_path"


def share_mapped(
    light: onnx.ModelProto, weights: Mapping[str, np.ndarray], settings: ort.SessionOptions
) -> dict[str, FilePlace]:
    """Let initializers of a light model refer to the files that hold their weights; return their places.

    ``settings`` names the folder of the files, one that encloses them all.
    """
    found = {name: place_of(array) for name, array in weights.items()}
    places = {name: place for name, place in found.items() if place is not None}
    if not places:
        return {}
    folder = Path(os.path.commonpath([place.path.parent for place in places.values()]))
    for tensor in light.graph.initializer:
        if tensor.name in places:
            _refer(tensor, places[tensor.name], folder)
    settings.add_session_config_entry(_FOLDER, str(folder))
    return places


def _refer(tensor: onnx.TensorProto, place: FilePlace, folder: Path) -> None:
    tensor.data_location = onnx.TensorProto.EXTERNAL
    location = place.path.relative_to(folder).as_posix()
    for key, value in (("location", location), ("offset", place.offset), ("length", place.length)):
        tensor.external_data.add(key=key, value=str(value))

"""Models and samples in whatever form a caller has them, as the files that the tools read."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from onnx_narrow.api.result import Result
from transforms import model_io
from transforms.files.array_archive import write_arrays
from transforms.files.paths import AnyPath
from transforms.run.data_sets import Reader, Room, each_sample
from transforms.run.samples import SAMPLE_SUFFIXES
from transforms.runtime.inputs import model_inputs
from transforms.scheme import Scheme

Model: TypeAlias = AnyPath | onnx.ModelProto | gs.Graph | Result
"""A model: a path, a proto, a graph, or a result that has one; none of them is ever changed."""

Data: TypeAlias = AnyPath | Reader | Iterable[Any] | Callable[[], Iterable[Any]]
"""Samples: a folder; a reader with ``get_next``; an iterable or a sequence; or a callable that makes one.

It gives dicts of arrays by input name, arrays for a model with one input, or tuples in the order of the
inputs; labels behind them are left out. Arrays are NumPy's, or tensors that become such. A sample may also be
a path (a pathlib.Path, as strings are arrays) of a file as in a folder. As many are read as the length says,
or ``limit``; what has neither has to end within 100,000.
"""


def model_file(model: Model, folder: Path, name: str = "model.onnx") -> Path:
    """Return the path of a model, which is written to a folder if it is not in a file."""
    if isinstance(model, Result):
        model = model.model
    if isinstance(model, str | os.PathLike):
        return Path(model)
    graph = model_io.load(model) if isinstance(model, onnx.ModelProto) else model
    if not isinstance(graph, gs.Graph):
        raise TypeError(f"a model is a path, a ModelProto, a Graph or a Result, not {type(model).__name__}")
    path = folder / name
    model_io.save(graph, path)
    return path


def one_model(model: Model, data: Data | None, folder: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a tool that reads one model and, if there are any, samples."""
    path = model_file(model, folder)
    return {"input": path, "data": _samples_of(path, data, folder, options), **options}


def two_models(
    float_model: Model, quantized: Model, data: Data, folder: Path, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of a tool that reads a float model, the one quantized from it, and samples."""
    path = model_file(float_model, folder, "float.onnx")
    other = model_file(quantized, folder, "quantized.onnx")
    samples = _samples_of(path, data, folder, options)
    return {"float_model": path, "quantized": other, "data": samples, **options}


def _samples_of(model: Path, data: Data | None, folder: Path, options: Mapping[str, Any]) -> Path | None:
    return samples_folder(data, model, folder / "samples", options.get("limit"))


def samples_folder(data: Data | None, model: Path, folder: Path, limit: int | None = None) -> Path | None:
    """Return the folder of samples, written there one by one if they are not in one; None without any.

    A sample that is a path stays in its file. Raises TypeError for samples that are none of :data:`Data`,
    ValueError for one without an input, for no sample, and for more than :mod:`transforms.run.data_sets`
    allows.
    """
    if data is None or isinstance(data, str | os.PathLike):
        return None if data is None else Path(data)
    names = [one.name for one in model_inputs(model_io.load(model))]
    folder.mkdir()
    room = Room(folder)
    for number, sample in enumerate(each_sample(data, limit)):
        if isinstance(sample, os.PathLike):
            _link(Path(sample), folder, number)
            continue
        arrays = _by_name(sample, names, number)
        room.take(sum(array.nbytes for array in arrays.values()))
        write_arrays(folder / f"{number:06d}.npz", arrays)
    return folder


def config_file(config: AnyPath | Scheme, folder: Path) -> str:
    """Return a preset or the path of a scheme, which is written to a folder if it is an object."""
    if not isinstance(config, Scheme):
        return os.fspath(config)
    path = folder / "scheme.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    return str(path)


def as_array(value: Any) -> np.ndarray:
    """Return an array, also of a tensor that asks to be detached and moved before it becomes one."""
    for step in ("detach", "cpu", "numpy"):
        value = getattr(value, step)() if hasattr(value, step) else value
    return np.asarray(value)


def _by_name(sample: Any, names: list[str], number: int) -> dict[str, np.ndarray]:
    if isinstance(sample, Mapping):
        return {str(name): as_array(value) for name, value in sample.items()}
    parts = list(sample) if isinstance(sample, tuple | list) else [sample]
    if len(parts) < len(names):
        raise ValueError(f"sample {number} has {len(parts)} arrays, the model has inputs {', '.join(names)}")
    return {name: as_array(part) for name, part in zip(names, parts, strict=False)}


def _link(file: Path, folder: Path, number: int) -> None:
    """Let a sample that lies in a file, or is a folder of steps, appear in a folder."""
    if not file.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
    if not file.is_dir() and file.suffix.lower() not in SAMPLE_SUFFIXES:
        raise ValueError(f"sample {number}: '{file}' ends in none of {', '.join(SAMPLE_SUFFIXES)}")
    place = folder / f"{number:06d}{file.suffix}"
    try:
        place.symlink_to(file.resolve())
    except OSError:  # where links are not allowed
        (shutil.copytree if file.is_dir() else shutil.copyfile)(file, place)

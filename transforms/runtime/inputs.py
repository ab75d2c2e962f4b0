"""The inputs of a model, and whether arrays fit them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort

from transforms.files.array_header import ArrayHeader
from transforms.model.model_error import ModelError

_NUMPY_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.str_,
} | {f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}


@dataclass(frozen=True)
class ModelInput:
    """An input of a model: its name, element type, and shape with None for each dimension that is free."""

    name: str
    dtype: np.dtype
    shape: tuple[int | None, ...]


def model_inputs(graph: gs.Graph) -> tuple[ModelInput, ...]:
    """Return the inputs of a graph, as a session on it would describe them.

    Raises ModelError for an input without type and shape, of a type that NumPy does not have, or that is no
    tensor.
    """
    return tuple(_of_tensor(tensor) for tensor in graph.inputs)


def session_input(argument: ort.NodeArg) -> ModelInput:
    """Return an input as a session describes it; ValueError unless NumPy arrays can be fed to it."""
    if argument.type not in _NUMPY_TYPES:
        raise ValueError(f"input '{argument.name}' of type {argument.type} cannot be fed from arrays")
    shape = tuple(size if isinstance(size, int) else None for size in argument.shape)
    return ModelInput(argument.name, np.dtype(_NUMPY_TYPES[argument.type]), shape)


class SizesError(ModelError):
    """A run that failed on a sample in which a dimension has two sizes."""


def two_sizes(declared: Mapping[str, Sequence[int | str | None] | None], feed: Mapping[str, Any]) -> str:
    """Return which dimension has two sizes in a feed though inputs have one name for it; empty if none.

    ONNX Runtime relies on such names where it reuses memory and merges nodes, and runs some models all the
    same. ``declared``: the shapes of inputs.
    """
    known: dict[str, tuple[int, str]] = {}
    for one, shape in declared.items():
        for name, size in zip(shape or (), getattr(feed.get(one), "shape", ()), strict=False):
            if not isinstance(name, str) or not name:
                continue
            other, first = known.setdefault(name, (size, one))
            if other != size:
                return (
                    f"dimension '{name}' of the model is {other} in input '{first}' and {size} in '{one}', "
                    "which have to be one size"
                )
    return ""


def check_feed(
    inputs: Sequence[ModelInput], feed: Mapping[str, np.ndarray | ArrayHeader], sample: str
) -> None:
    """Raise ValueError, naming sample and input, when a feed does not fit: names, types, ranks, sizes."""
    wanted = {one.name for one in inputs}
    if unknown := sorted(feed.keys() - wanted):
        raise ValueError(
            f"sample '{sample}': '{unknown[0]}' is not an input of the model, which has {_list(wanted)}"
        )
    for one in inputs:
        if one.name not in feed:
            raise ValueError(f"sample '{sample}': no array for input '{one.name}', only for {_list(feed)}")
        array, place = feed[one.name], f"sample '{sample}', input '{one.name}'"
        if not _same_type(array.dtype, one.dtype):
            raise ValueError(f"{place}: type {array.dtype} instead of {one.dtype}")
        if not _fits(array.shape, one.shape):
            raise ValueError(f"{place}: shape {_dims(array.shape)} instead of {_dims(one.shape)}")


def taken_shape(one: ModelInput, given: np.ndarray | ArrayHeader) -> tuple[int, ...]:
    """Return the shape in which an input takes an array made for the same input of another model.

    Where the types differ, an empty array has the width of the input: numbers of few bits share bytes.
    """
    width = one.shape[-1] if len(given.shape) == len(one.shape) and given.dtype != one.dtype else None
    return (*given.shape[:-1], width) if width and 0 in given.shape[:-1] else given.shape


def random_array(one: ModelInput, random: np.random.Generator) -> np.ndarray:
    """Return random numbers for an input; a free dimension is 1."""
    shape = [1 if size is None else size for size in one.shape]
    if one.dtype.kind == "f":
        return random.standard_normal(shape).astype(one.dtype)
    if one.dtype.kind == "U":
        return np.full(shape, "")
    return random.integers(0, 2, shape).astype(one.dtype)


def _of_tensor(tensor: gs.Tensor) -> ModelInput:
    if isinstance(tensor, gs.Variable) and tensor.type != "tensor_type":
        kind = str(tensor.type).removesuffix("_type").replace("_", " ")
        raise ModelError(f"input '{tensor.name}' is of type {kind}, samples hold only tensors")
    if tensor.dtype is None or tensor.shape is None:
        raise ModelError(f"input '{tensor.name}' has no declared type and shape")
    if isinstance(tensor.dtype, int):  # how graph-surgeon writes the types that NumPy does not have
        kind = onnx.TensorProto.DataType.Name(tensor.dtype)
        raise ModelError(f"input '{tensor.name}' of type {kind} cannot be fed from arrays")
    dtype = np.dtype(tensor.dtype)
    shape = tuple(size if isinstance(size, int) and size >= 0 else None for size in tensor.shape)
    return ModelInput(tensor.name, np.dtype(np.str_) if dtype.kind == "O" else dtype, shape)


def _same_type(given: np.dtype, wanted: np.dtype) -> bool:
    """Byte order aside; strings are of any length, or objects, as the runtime makes them."""
    if wanted.kind == "U":
        return given.kind in "UO"
    return given.kind == wanted.kind and given.itemsize == wanted.itemsize


def _fits(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    same = (size in (given, None) for given, size in zip(shape, wanted, strict=False))
    return len(shape) == len(wanted) and all(same)


def _dims(shape: Sequence[int | None]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


def _list(names: object) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names)) or "none"  # type: ignore[call-overload]

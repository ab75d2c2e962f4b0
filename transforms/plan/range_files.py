"""Files of grids: our own JSON form, and the encodings of AIMET and Qualcomm's tools.

Ours is JSON with a list of grids by the name of each tensor: role, format, axis, scale, zero point (in the
integers of the format), the range that these cover, and the lowest and highest number seen. Encodings are
those of version 0.6.1: a list per tensor, of activations and of parameters, with ``bitwidth``, ``scale``,
``offset`` (minus the zero point, for integers that start at 0), ``min``, ``max`` and ``is_symmetric``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ops.formats import get_format
from transforms.graph.grids import Grid
from transforms.plan.tensor_grids import TensorGrid

FORM = "onnx-narrow ranges 1"
_VERSION = "0.6.1"
_ACTIVATIONS, _PARAMETERS = "activation_encodings", "param_encodings"
_MOST_BITS = 32
_ROLES = ("activation", "weight", "constant")


def to_text(grids: Iterable[TensorGrid], *, encodings: bool = False) -> str:
    """Return grids as the text of a file: JSON of our own form, or encodings."""
    content = _encodings(grids) if encodings else {"form": FORM, "tensors": _tensors(grids)}
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def from_text(text: str) -> list[TensorGrid]:
    """Return the grids of a text in either form; ValueError, naming the tensor, for anything else."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if isinstance(content, dict) and content.get("form") == FORM:
        tensors = _named(content.get("tensors"), "tensors")
        return [_read(name, entry) for name, many in tensors for entry in _listed(name, many)]
    if isinstance(content, dict) and _ACTIVATIONS in content:
        kinds = ((_ACTIVATIONS, "activation"), (_PARAMETERS, "weight"))
        named = (
            (name, role, many) for key, role in kinds for name, many in _named(content.get(key, {}), key)
        )
        return [grid for encoding in named for grid in _read_encodings(*encoding)]
    raise ValueError(f"neither has the form '{FORM}' nor {_ACTIVATIONS}")


def _tensors(grids: Iterable[TensorGrid]) -> dict[str, list[dict[str, Any]]]:
    tensors: dict[str, list[dict[str, Any]]] = {}
    for tensor_grid in grids:
        grid = tensor_grid.in_format(get_format(tensor_grid.format))
        low, high = grid.ends()
        entry = {
            "role": tensor_grid.role,
            "format": tensor_grid.format,
            "axis": tensor_grid.axis,
            "scale": tensor_grid.scale.tolist(),
            "zero_point": grid.zero_point.astype(np.int64).tolist(),
            "range": [low.min().item(), high.max().item()],
            "seen": None if tensor_grid.low is None else [tensor_grid.low, tensor_grid.high],
        }
        tensors.setdefault(tensor_grid.name, []).append(entry)
    return tensors


def _named(value: object, where: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise ValueError(f"'{where}' is not a table of tensors")
    return value.items()


def _listed(name: str, many: object) -> list[Mapping[str, Any]]:
    if not isinstance(many, list) or not all(isinstance(entry, dict) for entry in many):
        raise ValueError(f"tensor '{name}': not a list of grids")
    return many


def _read(name: str, entry: Mapping[str, Any]) -> TensorGrid:
    fmt = get_format(str(entry.get("format")))
    if not fmt.is_integer:
        raise ValueError(f"tensor '{name}': format '{fmt.name}' has no scale")
    scale = _positive(name, entry.get("scale"))
    zero_point = _whole(name, entry.get("zero_point"), int(fmt.bits), int(fmt.lowest))
    if scale.shape != zero_point.shape or scale.ndim > 1:
        shapes = [" x ".join(map(str, array.shape)) or "one" for array in (scale, zero_point)]
        raise ValueError(f"tensor '{name}': scales: {shapes[0]}, zero points: {shapes[1]}")
    role, axis = entry.get("role"), entry.get("axis")
    if role not in _ROLES:
        raise ValueError(f"tensor '{name}': role {role!r} is none of {', '.join(_ROLES)}")
    if scale.ndim and (type(axis) is not int or axis < 0):
        raise ValueError(
            f"tensor '{name}': axis {axis!r} of {scale.size} scales is not a whole number from 0"
        )
    if not scale.ndim and axis is not None:
        raise ValueError(f"tensor '{name}': axis {axis!r} of one scale, it has to be null")
    grid = Grid(fmt.name, scale, zero_point + int(fmt.lowest), axis=axis)
    return TensorGrid.of(name, str(role), grid, *_seen(name, entry.get("seen")))


def _seen(name: str, value: object) -> tuple[float, float] | tuple[None, None]:
    """Return the lowest and the highest number in a file's entry, or None for both."""
    if value is None:
        return None, None
    ends = value if isinstance(value, list) else []
    numbers = [float(end) for end in ends if type(end) in (int, float) and math.isfinite(end)]
    if len(ends) != 2 or len(numbers) != 2 or numbers[0] > numbers[1]:
        raise ValueError(f"tensor '{name}': seen {str(value)[:40]} is not a lowest and a highest number")
    return numbers[0], numbers[1]


def _positive(name: str, value: object) -> np.ndarray:
    try:
        with np.errstate(over="ignore"):
            scale = np.asarray(None if isinstance(value, bool) else value, np.float32)
    except (TypeError, ValueError):
        scale = np.zeros(1, np.float32)
    if not scale.size or not (np.isfinite(scale) & (scale > 0)).all():
        raise ValueError(f"tensor '{name}': scale {str(value)[:40]} is not a positive number")
    return scale


def _whole(name: str, value: object, bits: int, lowest: int) -> np.ndarray:
    """Return zero points counted from the lowest integer."""
    try:
        zero_points = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        zero_points = np.array(np.nan)
    offset = zero_points - lowest
    if not zero_points.size or not ((offset == np.rint(offset)) & (offset >= 0) & (offset < 2.0**bits)).all():
        raise ValueError(f"tensor '{name}': zero point {str(value)[:40]} is not an integer of {bits} bits")
    return offset.astype(np.int64)


def _encodings(grids: Iterable[TensorGrid]) -> dict[str, Any]:
    content: dict[str, Any] = {"version": _VERSION, _ACTIVATIONS: {}, _PARAMETERS: {}}
    for grid in grids:
        low, high = grid.in_format(get_format(grid.format)).ends()
        section = content[_PARAMETERS if grid.role == "weight" else _ACTIVATIONS]
        if grid.name in section:
            raise ValueError(f"tensor '{grid.name}' has several grids, encodings hold one: use a .json file")
        is_symmetric = bool((grid.zero_point == 2 ** (grid.bits - 1)).all())
        many = zip(low, high, np.atleast_1d(grid.scale), np.atleast_1d(grid.zero_point), strict=True)
        section[grid.name] = [
            {
                "bitwidth": grid.bits,
                "dtype": "int",
                "is_symmetric": str(is_symmetric),
                "max": float(most),
                "min": float(least),
                "offset": -int(offset),
                "scale": float(scale),
            }
            for least, most, scale, offset in many
        ]
    return content


def _read_encodings(name: str, role: str, many: object) -> list[TensorGrid]:
    entries = _listed(name, many)
    if not entries or any(entry.get("dtype", "int") != "int" for entry in entries):
        return []  # a float type has no grid
    bits = {entry.get("bitwidth") for entry in entries}
    width = bits.pop()
    if bits or not isinstance(width, int) or not 0 < width <= _MOST_BITS:
        raise ValueError(f"tensor '{name}': bitwidth {width} is none of 1 to {_MOST_BITS}")
    scale = _positive(name, [entry.get("scale") for entry in entries])
    offsets = [entry.get("offset", math.nan) for entry in entries]
    zero_point = _whole(
        name, [-offset if isinstance(offset, int | float) else offset for offset in offsets], width, 0
    )
    if len(entries) == 1:
        scale, zero_point = scale[0], zero_point[0]
    scale, zero_point = np.asarray(scale), np.asarray(zero_point)
    return [TensorGrid(name, role, "", width, None, scale, zero_point)]

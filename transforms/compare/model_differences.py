"""Differences of two models by name: operators, opsets, formats and stored numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import onnx

from transforms.compare.inspect_model import Inspection
from transforms.compare.light_file import LightFile, read_constant, read_light
from transforms.graph.proto_graphs import each_graph


@dataclass
class Differences:
    """What a second model has more or less of than a first.

    ``operators``: by ``domain::name``, how many more the second has. ``same``, ``changed``: names of
    constants in both models with equal or different bytes; ``only_here``, ``only_there``, and ``missing``:
    those without data.
    """

    operators: dict[str, int] = field(default_factory=dict)
    same: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    only_here: list[str] = field(default_factory=list)
    only_there: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def model_differences(first: Inspection, second: Inspection) -> Differences:
    """Return how the second model differs from the first; large weights are compared one at a time."""
    here, there = read_light(first.source), read_light(second.source)
    differences = Differences(operators=_operators(first, second))
    first_constants, second_constants = _constants(here), _constants(there)
    for name, tensor in first_constants.items():
        if name not in second_constants:
            differences.only_here.append(name)
            continue
        a, b = _bytes(tensor, here), _bytes(second_constants[name], there)
        if a is None or b is None:
            differences.missing.append(name)
        else:
            kinds = [(t.data_type, tuple(t.dims)) for t in (tensor, second_constants[name])]
            is_same = kinds[0] == kinds[1] and np.array_equal(a, b)
            (differences.same if is_same else differences.changed).append(name)
    differences.only_there += [name for name in second_constants if name not in first_constants]
    return differences


def _operators(one: Inspection, other: Inspection) -> dict[str, int]:
    counts = [
        Counter({f"{d}::{op}": n for d, ops in model.operators.items() for op, n in ops.items()})
        for model in (one, other)
    ]
    names = sorted(counts[0] | counts[1])
    return {name: counts[1][name] - counts[0][name] for name in names if counts[0][name] != counts[1][name]}


def _constants(file: LightFile) -> dict[str, onnx.TensorProto]:
    return {tensor.name: tensor for graph in each_graph(file.model.graph) for tensor in graph.initializer}


def _bytes(tensor: onnx.TensorProto, file: LightFile) -> np.ndarray | None:
    array = read_constant(tensor, file.mapped)
    if array is None or array.dtype == object:
        return array
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)

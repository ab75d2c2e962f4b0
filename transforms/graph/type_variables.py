"""Which tensors of a node have one type: schemas of onnx and ONNX Runtime, whose fields differ in names."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import onnxruntime.capi.onnxruntime_pybind11_state as runtime

Variables = tuple[tuple[str, ...], tuple[str, ...]]
"""Names of the type variables of inputs and of outputs, empty for a tensor with a type of its own.

The last of them is that of all further tensors as well.
"""


def type_variables(schema: Any) -> Variables:
    """Return the type variables of a schema of onnx or ONNX Runtime; none for tensors of mixed types."""
    names = {constraint.type_param_str for constraint in schema.type_constraints}
    own = hasattr(schema, "has_function")  # onnx's
    type_field, alike_field = ("type_str", "is_homogeneous") if own else ("typeStr", "isHomogeneous")

    def _of(parameters: Any) -> tuple[str, ...]:
        kinds = ((getattr(one, type_field), getattr(one, alike_field)) for one in parameters)
        return tuple(kind if kind in names and alike else "" for kind, alike in kinds)

    return _of(schema.inputs), _of(schema.outputs)


def runtime_schema(op: str, domain: str, version: int) -> Any | None:
    """Return ONNX Runtime's own schema of an operator; None if it has none, or does not tell them."""
    fitting = [one for one in _of_runtime().get((domain, op), ()) if one.since_version <= version]
    return max(fitting, key=lambda one: one.since_version, default=None)


@lru_cache(maxsize=1)
def _of_runtime() -> dict[tuple[str, str], list[Any]]:
    schemas: dict[tuple[str, str], list[Any]] = {}
    for one in getattr(runtime, "get_all_operator_schema", list)():
        schemas.setdefault((one.domain, one.name), []).append(one)
    return schemas

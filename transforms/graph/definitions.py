"""Definitions of ONNX's own operators in its opsets, and which of them changes more than types."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import onnx


@lru_cache(maxsize=4096)
def definition(op: str, opset: int) -> onnx.defs.OpSchema | None:
    """Return the definition of one of ONNX's own operators in an opset, or None if there is none."""
    try:
        return onnx.defs.get_schema(op, max_inclusive_version=opset, domain="")
    except onnx.defs.SchemaError:
        return None


@lru_cache(maxsize=4096)
def changes(op: str, before: int, after: int) -> tuple[int, ...]:
    """Return the opsets after ``before``, up to ``after``, that change an operator beyond its types."""
    found = [definition(op, before), *(definition(op, opset) for opset in range(before + 1, after + 1))]
    pairs = pairwise(found)
    return tuple(
        new.since_version for old, new in pairs if new is not None and new != old and is_change(old, new)
    )


def is_change(old: onnx.defs.OpSchema | None, new: onnx.defs.OpSchema) -> bool:
    """Return whether a definition differs from an older one by more than added types.

    An operator that appears for the first time has not changed.
    """
    if old is None or old.since_version == new.since_version:
        return False
    return _signature(old) != _signature(new) or _loses_types(old, new)


def _signature(schema: onnx.defs.OpSchema) -> tuple[object, ...]:
    attributes = {
        name: (attribute.type, attribute.required, attribute.default_value.SerializeToString())
        for name, attribute in schema.attributes.items()
    }
    ends = [
        [(one.option, one.is_homogeneous, one.min_arity) for one in parameters]
        for parameters in (schema.inputs, schema.outputs)
    ]
    return attributes, ends, schema.deprecated


def _loses_types(old: onnx.defs.OpSchema, new: onnx.defs.OpSchema) -> bool:
    pairs = [*zip(old.inputs, new.inputs, strict=False), *zip(old.outputs, new.outputs, strict=False)]
    return any(not set(before.types) <= set(after.types) for before, after in pairs)

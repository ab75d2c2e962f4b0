"""Schemas of operators: types of their tensors, and opsets that change more than types."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

import onnx
import onnx_graphsurgeon as gs
import onnxruntime.capi.onnxruntime_pybind11_state as runtime

from transforms.graph import dtypes, walk
from transforms.graph.rewire import STANDARD_DOMAINS

_TYPE_STRINGS = {
    dtypes.FLOAT: "tensor(float)",
    dtypes.FLOAT16: "tensor(float16)",
    dtypes.BFLOAT16: "tensor(bfloat16)",
}


RANDOM = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
"""Operators that draw numbers."""

_FLOAT32_BODIES = frozenset({"MeanVarianceNormalization"})
"""Functions of other operators with float32 constants, whatever their schemas allow.

The only ones of onnx that its type inference refuses in float16 or bfloat16.
"""

Variables = tuple[tuple[str, ...], tuple[str, ...]]
"""Names of the type variables of inputs and outputs, empty for a tensor with a fixed type.

The last one also applies to all further tensors.
"""


def versions(graph: gs.Graph) -> dict[str, int]:
    """Return the operator-set version of each domain that the model imports."""
    walk.check_graph(graph)
    imported = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in graph.import_domains or ()}
    return {"": graph.opset, **imported}


@lru_cache(maxsize=4096)
def find_schema(op: str, domain: str, version: int) -> onnx.defs.OpSchema | None:
    """Return the schema of an operator at a version of its domain; None if onnx does not define it."""
    try:
        return onnx.defs.get_schema(op, max_inclusive_version=version, domain=domain)
    except onnx.defs.SchemaError:
        return None


def definition(op: str, opset: int) -> onnx.defs.OpSchema | None:
    """Return the definition of a standard operator in an opset, or None if there is none."""
    return find_schema(op, "", opset)


@lru_cache(maxsize=4096)
def changes(op: str, before: int, after: int) -> tuple[int, ...]:
    """Return the opsets after ``before``, up to ``after``, that change more of an operator than its types."""
    definitions = [definition(op, before), *(definition(op, opset) for opset in range(before + 1, after + 1))]
    pairs = pairwise(definitions)
    return tuple(
        new.since_version for old, new in pairs if new is not None and new != old and _is_change(old, new)
    )


def _is_change(old: onnx.defs.OpSchema | None, new: onnx.defs.OpSchema) -> bool:
    """Return whether a definition differs from an older one, if any, by more than added types."""
    if old is None or old.since_version == new.since_version:
        return False
    return _signature(old) != _signature(new) or _loses_types(old, new)


def _signature(schema: onnx.defs.OpSchema) -> tuple[object, ...]:
    attributes = {
        name: (attribute.type, attribute.required, attribute.default_value.SerializeToString())
        for name, attribute in schema.attributes.items()
    }
    ends = [
        [(parameter.option, parameter.is_homogeneous, parameter.min_arity) for parameter in parameters]
        for parameters in (schema.inputs, schema.outputs)
    ]
    return attributes, ends, schema.deprecated


def _loses_types(old: onnx.defs.OpSchema, new: onnx.defs.OpSchema) -> bool:
    pairs = [*zip(old.inputs, new.inputs, strict=False), *zip(old.outputs, new.outputs, strict=False)]
    return any(not set(before.types) <= set(after.types) for before, after in pairs)


def schema(node: gs.Node, opsets: dict[str, int]) -> onnx.defs.OpSchema | None:
    """Return the schema of a node at the model's opsets; None for an operator that onnx does not define."""
    domain = "" if node.domain in STANDARD_DOMAINS else node.domain
    return find_schema(node.op, domain, opsets[domain]) if domain in opsets else None


def must_stay_float32(node: gs.Node, index: int, opsets: dict[str, int]) -> bool:
    """Return whether an input has to stay float32.

    It has to if the schema names that type, as for the scales of Resize; if it is the scale of a
    quantization, which defines the meaning of stored integers; if its bits are read (BitCast); or if it is
    the ratio of a Dropout, which only matters in training: if nodes in a body compute it, ONNX Runtime 1.31
    removes the Dropout too late to infer the types of the tensors that the body captures.
    """
    op_schema = schema(node, opsets)
    if op_schema is None or not op_schema.inputs:
        return False
    if op_schema.name == "BitCast" or _is_ratio(op_schema, index):
        return True
    parameter = op_schema.inputs[min(index, len(op_schema.inputs) - 1)]
    return parameter.type_str == _TYPE_STRINGS[dtypes.FLOAT] or _is_scale(parameter, op_schema)


def _is_ratio(op_schema: onnx.defs.OpSchema, index: int) -> bool:
    return op_schema.name == "Dropout" and index == 1


def _is_scale(parameter: onnx.defs.OpSchema.FormalParameter, op_schema: onnx.defs.OpSchema) -> bool:
    return parameter.name.endswith("scale") and any(p.name.endswith("zero_point") for p in op_schema.inputs)


def allows(node: gs.Node, element: int, opsets: dict[str, int]) -> bool:
    """Return whether every float32 input and output of the node could also have the element type.

    Inputs that have to stay float32 are ignored, unless the schema ties other tensors to their type.
    """
    op_schema = schema(node, opsets)
    if op_schema is None or _shares_bound_type(node, op_schema, opsets) or op_schema.name in _FLOAT32_BODIES:
        return False
    return all(
        _TYPE_STRINGS[element] in parameters[min(index, len(parameters) - 1)].types
        for tensors, parameters in ((node.inputs, op_schema.inputs), (node.outputs, op_schema.outputs))
        for index, tensor in enumerate(tensors)
        if dtypes.is_type(tensor, dtypes.FLOAT)
        and not (tensors is node.inputs and must_stay_float32(node, index, opsets))
    )


def _shares_bound_type(node: gs.Node, op_schema: onnx.defs.OpSchema, opsets: dict[str, int]) -> bool:
    """Return whether a type variable of the schema also covers an input that has to stay float32."""
    variables = {constraint.type_param_str for constraint in op_schema.type_constraints}
    return any(
        op_schema.inputs[min(index, len(op_schema.inputs) - 1)].type_str in variables
        for index in range(len(node.inputs))
        if must_stay_float32(node, index, opsets) and not _is_ratio(op_schema, index)
    )


def output_follows(node: gs.Node, output: int, inputs: list[int], opsets: dict[str, int]) -> bool:
    """Return whether an output has, by the schema, the type of one of the inputs with the indices given."""
    op_schema = schema(node, opsets)
    if op_schema is None:
        return False
    kind = op_schema.outputs[min(output, len(op_schema.outputs) - 1)].type_str
    return any(op_schema.inputs[min(index, len(op_schema.inputs) - 1)].type_str == kind for index in inputs)


def type_variables(schema: Any) -> Variables:
    """Return the type variables of a schema of onnx or ONNX Runtime, empty for tensors of mixed types."""
    names = {constraint.type_param_str for constraint in schema.type_constraints}
    is_onnx = hasattr(schema, "has_function")  # onnx's
    type_field, alike_field = ("type_str", "is_homogeneous") if is_onnx else ("typeStr", "isHomogeneous")

    def _of(parameters: Any) -> tuple[str, ...]:
        kinds = (
            (getattr(parameter, type_field), getattr(parameter, alike_field)) for parameter in parameters
        )
        return tuple(kind if kind in names and alike else "" for kind, alike in kinds)

    return _of(schema.inputs), _of(schema.outputs)


def runtime_schema(op: str, domain: str, version: int) -> Any | None:
    """Return ONNX Runtime's own schema of an operator, or None if it has none or does not expose it."""
    fitting = [
        op_schema for op_schema in _of_runtime().get((domain, op), ()) if op_schema.since_version <= version
    ]
    return max(fitting, key=lambda op_schema: op_schema.since_version, default=None)


@lru_cache(maxsize=1)
def _of_runtime() -> dict[tuple[str, str], list[Any]]:
    schemas: dict[tuple[str, str], list[Any]] = {}
    for op_schema in getattr(runtime, "get_all_operator_schema", list)():
        schemas.setdefault((op_schema.domain, op_schema.name), []).append(op_schema)
    return schemas

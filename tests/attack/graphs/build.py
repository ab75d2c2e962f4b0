"""A random valid model as a function of a seed: one that the full checker and ONNX Runtime take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.attack.graphs import (
    axes,
    bodies,
    elementwise,
    functions,
    guards,
    huge,
    layers,
    moves,
    pools,
    rarer,
    reductions,
    rows,
    sequences,
    sizes,
)
from tests.attack.graphs.distances import distance, largest
from tests.attack.graphs.scope import Case, Rejected, Scope, sparse
from tests.attack.graphs.single_node import as_arrays, captured, declare, session

OPSETS = range(7, 27)
"""Operator sets that ONNX Runtime 1.31 takes."""
_SUMS = 1e-3
"""Part of the largest output that another order of sums is allowed, on the way through a whole model: more is
a fault of ONNX Runtime, which no conversion can be blamed for."""
_RULES = {}
for _module in (
    *(elementwise, moves, sizes, reductions, layers, rarer, bodies),
    *(axes, functions, guards, huge, pools, rows, sequences),
):
    _RULES.update(_module.RULES)


@dataclass
class Built:
    """A model with a feed, and what ONNX Runtime makes of it."""

    model: onnx.ModelProto
    feeds: dict[str, Any]
    outputs: dict[str, Any]
    discarded: list[str]


def build(seed: int) -> Built:
    """Return the model of a seed, and why drafts before it were thrown away."""
    discarded: list[str] = []
    for draft in range(50):
        rng = np.random.default_rng([seed, draft])
        try:
            model, feeds, expected = _draft(rng)
        except (ValueError, Rejected) as error:
            discarded.append(str(error))
            continue
        reason, outputs = _check(model, feeds, expected)
        if reason is None:
            return Built(model, feeds, outputs, discarded)
        discarded.append(reason)
    raise RuntimeError(f"seed {seed}: no valid model in 50 drafts, the last: {discarded[-1]}")


def with_outputs(model: onnx.ModelProto, feeds: dict[str, Any], *, optimized: bool = False) -> Built:
    """Return a model with what ONNX Runtime makes of a feed."""
    names = [output.name for output in model.graph.output]
    results = session(model, optimized=optimized).run(names, feeds)
    outputs = {name: as_arrays(result) for name, result in zip(names, results, strict=True)}
    return Built(model, feeds, outputs, [])


def _draft(rng: np.random.Generator) -> tuple[onnx.ModelProto, dict[str, Any], dict[str, Any]]:
    opset = int(rng.choice(OPSETS))
    least = helper.find_min_ir_version_for([helper.make_opsetid("", opset)])
    ir_version = int(rng.integers(least, 12)) if least < 12 else least
    main = rng.choice([np.float32, np.float16, np.float64], p=[0.86, 0.12, 0.02])
    case = Case(rng, opset, ir_version, main)
    case.rules = dict(_RULES)
    for rule in list(case.rules):  # other operators come together in other models
        case.rules[rule] *= float(rng.choice([0.3, 1, 1, 3]))
    s = Scope(case)
    for _ in range(int(rng.integers(1, 3))):
        s.float(fresh=1)
    case.grow(s, int(rng.integers(2, 16)))
    return _assemble(s)


COUNTING = frozenset({"Compress", "NonZero", "NonMaxSuppression", "TopK", "Unique", "If", "Loop"})
"""Operators that make as many rows as numbers say."""


def _assemble(s: Scope) -> tuple[onnx.ModelProto, dict[str, Any], dict[str, Any]]:
    case = s.case
    ends = _choose_outputs(s)
    nodes = _needed(s.nodes, set(ends)) if case.chance(0.8) else s.nodes
    graph = helper.make_graph(nodes, "graph", [], [])
    style = case.one_of(("static", "static", "dynamic", "mixed", "unknown"))
    for name in s.inputs:
        graph.input.append(_declare(s, name, style))
    for name, array in s.initializers.items():
        graph.initializer.append(numpy_helper.from_array(array, name))
        if name in s.overridable or case.ir_version < 4:
            graph.input.append(_declare(s, name, "static"))
    if case.opset >= 11 and case.ir_version >= 6 and case.chance(0.04):
        name = case.names.tensor("sparse")  # unused, for the checker knows no operator that takes one
        s.sparse[name] = sparse(np.asarray([0, 0.5, 0], np.float32), name)
    for tensor in s.sparse.values():
        graph.sparse_initializer.append(tensor)
        if case.ir_version < 4:
            raise ValueError("sparse initializers are newer")
    counted = _counted(nodes)
    for name in ends:
        chosen = case.one_of((style, "unknown", "dynamic"))
        graph.output.append(_declare(s, name, "unknown" if name in counted else chosen))
    if case.chance(0.3) and style == "static":
        made = [n for node in nodes for n in node.output if n in s.values and n not in counted.union(ends)]
        graph.value_info.extend(
            _declare(s, n, "static") for n in made[::2] if isinstance(s.values[n], np.ndarray)
        )
    model = helper.make_model(
        graph, opset_imports=case.opsets, ir_version=case.ir_version, functions=case.functions
    )
    if case.functions and case.ir_version < 8:
        raise ValueError("functions are newer")
    values = s.visible()
    return model, {name: values[name] for name in s.inputs}, {name: values[name] for name in ends}


def _counted(nodes: list[onnx.NodeProto]) -> set[str]:
    """Return the tensors whose sizes may follow from numbers, so that no declaration can tell them."""
    found: set[str] = set()
    for node in nodes:
        if node.op_type in COUNTING or found & {*node.input, *captured(node)}:
            found |= set(node.output)
    return found


def _choose_outputs(s: Scope) -> list[str]:
    """Return leaves, and some tensors that are used further, or an input or weight itself.

    Of wild tensors leaves alone, and none with NaN in it, of which nobody can say what it should become.
    """
    case = s.case
    read = {name for node in s.nodes for name in node.input}
    dense = [node for node in s.nodes if not any(a.HasField("sparse_tensor") for a in node.attribute)]
    made = [n for node in dense for n in node.output if n in s.values]
    made = [n for n in made if isinstance(s.values[n], np.ndarray) or case.chance(0.3)]
    wild = [n for node in s.nodes for n in node.output if n in s.wild and n not in read]
    leaves = [n for n in made if n not in read and case.chance(0.8)]
    also = [n for n in made if n in read and case.chance(0.08)]
    wild = [n for n in wild if _is_tensor(s.wild[n]) and not np.isnan(s.wild[n]).any() and case.chance(0.6)]
    passed = [n for n in [*s.inputs, *s.initializers] if n in s.values and case.chance(0.02)]
    ends = [*leaves, *also, *wild, *passed] or made[-1:]
    if not ends:
        raise ValueError("no node")
    return [ends[i] for i in case.rng.permutation(len(ends))]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def _needed(nodes: list[onnx.NodeProto], wanted: set[str]) -> list[onnx.NodeProto]:
    kept = []
    for node in reversed(nodes):
        if wanted & set(node.output):
            wanted |= {*node.input, *captured(node)}
            kept.append(node)
    return kept[::-1]


def _declare(s: Scope, name: str, style: str) -> onnx.ValueInfoProto:
    value, case = s.visible()[name], s.case
    info = declare(name, value)
    if isinstance(value, list) or style == "unknown":
        return info
    dims: list[int | str | None] = list(value.shape)
    for i, size in enumerate(value.shape):
        if style != "static" and (style != "mixed" or case.chance(0.5)):
            dims[i] = f"N{size}" if case.chance(0.3) else case.one_of((f"{name}_{i}", None))
    return helper.make_tensor_value_info(name, info.type.tensor_type.elem_type, dims)


def _check(
    model: onnx.ModelProto, feeds: dict[str, Any], expected: dict[str, Any]
) -> tuple[str | None, dict[str, Any]]:
    """Return why a model is of no use, or None with its outputs."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:
        return f"checker: {' '.join(str(error).split())[:200]}", {}
    try:
        outputs = with_outputs(model, feeds).outputs
        opened = with_outputs(model, feeds, optimized=True).outputs
    except Exception as error:
        return f"runtime: {' '.join(str(error).split())[:200]}", {}
    for name, value in outputs.items():
        if distance(opened[name], value) > _SUMS * (largest(value) + 1):
            return f"runtime: '{name}' of the float model changes by its own optimization", {}
    for name, value in expected.items():
        if not isinstance(value, list) and outputs[name].shape != value.shape:
            return f"runtime: '{name}' has another shape than from its node run alone", {}
        if distance(outputs[name], value) == np.inf:
            return f"runtime: '{name}' is not a number", {}
    return None, outputs

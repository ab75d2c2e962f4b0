"""The rules of a target that a model breaks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np
import onnx_graphsurgeon as gs

from ops.powers_of_two import are_powers
from transforms import features
from transforms.deploy.grids import StoredGrid, grids
from transforms.files.spelling import as_option
from transforms.functions import DOMAIN
from transforms.graph import dtypes, walk
from transforms.graph.qdq import BLOCKS, PAIRS, STANDARD
from transforms.graph.rewire import STANDARD_DOMAINS
from transforms.graph.selection import label_of
from transforms.graph.shapes import shape_of
from transforms.scheme.targets import INTEGER_OPERATORS, Target

_NAMES_AND_NUMBERS = re.compile(r"'.*?'|-?[\d.]+(e-?\d+)?")
_NARROW = -127
_CONVERSIONS = ("Cast", "CastLike", "Constant", "ConstantOfShape")


def check_target(graph: gs.Graph, row: Target) -> list[str]:
    """Return each rule of a target that a model breaks, in words that name the place; empty if it fits."""
    parts = _of_model, _of_operators, _of_bfloat16, _of_grids
    return [rule for part in parts for rule in part(graph, row)]


def _of_model(graph: gs.Graph, row: Target) -> Iterator[str]:
    if row.opsets and not row.opsets[0] <= graph.opset <= row.opsets[1]:
        first, last = row.opsets
        yield f"opset {graph.opset}: it takes {first} to {last} ({as_option('opset', str(last))})"
    if row.ir_version and graph.ir_version > row.ir_version:
        yield f"IR version {graph.ir_version}: it takes up to {row.ir_version}"
    if row.fixed_shapes:
        yield from free_inputs(graph, row)
    pairs = {str(node.domain or "") for node in walk.nodes(graph) if node.op in STANDARD}
    for domain in sorted(pairs - set(row.qdq_domains)):
        yield f"QuantizeLinear of domain '{domain}': it takes ONNX's own"


def _of_operators(graph: gs.Graph, row: Target) -> Iterator[str]:
    """Yield a rule for each operator that is neither ONNX's nor of this package nor of the runtime."""
    functions = {(function.domain, function.name) for function in graph.functions}
    own, foreign = (*STANDARD_DOMAINS, DOMAIN, *row.domains), INTEGER_OPERATORS - row.computes_integers
    first: dict[str, gs.Node] = {}
    for node in walk.nodes(graph):
        known = node.domain in own and (node.domain not in STANDARD_DOMAINS or node.op not in foreign)
        known |= node.op in (*PAIRS, *BLOCKS) or (node.domain, node.op) in functions
        if not known:
            first.setdefault(f"{node.op} of domain '{node.domain}'" if node.domain else node.op, node)
    for operator, node in first.items():
        yield f"'{label_of(node)}': operator {operator} is not known to run there"


def _of_bfloat16(graph: gs.Graph, row: Target) -> Iterator[str]:
    """Yield a rule for each operator on bfloat16 that the runtime has no kernel for."""
    first: dict[str, gs.Node] = {}
    for node in walk.nodes(graph) if row.bfloat16_kernels else ():
        typed = any(dtypes.is_type(t, dtypes.BFLOAT16) for t in (*node.inputs, *node.outputs))
        known = node.op in (*row.bfloat16_kernels, *_CONVERSIONS, *STANDARD) or any(walk.bodies(node))
        if typed and not known and node.domain in STANDARD_DOMAINS:
            first.setdefault(node.op, node)
    for operator, node in first.items():
        way = f"{as_option('target', row.name)} keeps it in float"
        yield f"'{label_of(node)}': no kernel for {operator} in bfloat16 ({way})"


def free_inputs(graph: gs.Graph, row: Target) -> Iterator[str]:
    """Yield a rule for each input with a free dimension, for a target that takes fixed shapes alone."""
    for tensor in graph.inputs if row.fixed_shapes else ():
        shape = shape_of(tensor)
        if shape is None or any(not isinstance(size, int) for size in shape):
            sizes = ",".join(str(s) if isinstance(s, int) else "N" for s in shape or ("N",))
            option = as_option("input_shapes", f"{tensor.name}:{sizes}")
            yield f"input '{tensor.name}' has free dimensions: fix them with {option}"


def _of_grids(graph: gs.Graph, row: Target) -> Iterator[str]:
    found = list(grids(graph))
    yield from _by_cause(rule for grid in found for rule in _of_grid(grid, row))
    computed = {node.op for node in walk.nodes(graph)} & (row.computes_integers | row.contrib_integers)
    rows = found or computed or any(map(features.reads_stored, walk.nodes(graph)))
    if not rows and row.takes_integers:
        yield f"nothing is quantized: it computes in low precision after {' or '.join(row.activations)}"


def _by_cause(rules: Iterable[str]) -> Iterator[str]:
    """Yield the first of the rules that differ in names and numbers alone, with the number of the others."""
    alike: dict[str, list[str]] = {}
    for rule in rules:
        alike.setdefault(_NAMES_AND_NUMBERS.sub("", rule), []).append(rule)
    for first, *others in alike.values():
        yield f"{first} (and {len(others)} more)" if others else first


def _of_grid(grid: StoredGrid, row: Target) -> Iterator[str]:
    legal = {"activation": row.activations, "weight": row.weights, "bias": row.biases}[grid.role]
    if grid.format not in legal:
        yield f"'{grid.label}': {grid.role} is {grid.format}, it takes {' or '.join(legal)}"
        return
    if not _is_integer(grid.format):
        return
    if row.blocks is not None and grid.format not in row.blocks and grid.node.attrs.get("block_size"):
        way = f"{as_option('matmul_nbits')}, or no block_size"
        yield f"'{grid.label}': no kernel for {grid.format} in blocks ({way})"
    if grid.is_computed and not row.computes_integers:
        yield f"'{grid.label}': its scale or zero point is computed, it has to be stored"
    if grid.grid is None:
        return
    scale, zero_point = grid.grid.scale, grid.grid.zero_point
    if row.symmetric and np.any(zero_point.astype(np.int64)):
        yield f"'{grid.label}': zero point {zero_point.reshape(-1)[0]}, it has to be 0"
    if row.power_of_two and not are_powers(scale):
        worst = next(s for s in scale.reshape(-1) if not are_powers(s))
        yield f"'{grid.label}': scale {worst:g}, it has to be a power of two"
    if not row.per_channel and scale.size > 1:
        way = as_option("per_channel", "False")
        yield f"'{grid.label}': {scale.size} scales, a tensor has one ({way})"
    held = grid.stored if row.narrow_weights and grid.role == "weight" else None
    if held is not None and held.dtype == np.int8 and held.min(initial=0) < _NARROW:
        way = as_option("assignments", "weight_method=MinMax")
        yield f"'{grid.label}': a weight is -128, the least is -127 ({way})"


def _is_integer(name: str) -> bool:
    return "int" in name and not name.startswith("mx")

"""The summary of a quantization."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator

import onnx_graphsurgeon as gs

from onnx_narrow.summaries import running
from onnx_narrow.summaries.words import Detail, Sizes, counts, written
from ops.formats import FORMATS, LINEAR
from transforms import features
from transforms.conversion.record import Record
from transforms.conversion.rows import features_of
from transforms.files.spelling import spelled
from transforms.functions import DOMAIN
from transforms.graph import dtypes, walk
from transforms.graph.constant_nodes import is_made_of_constants
from transforms.graph.dot_products import is_dot_product, is_operand
from transforms.graph.some_names import counted
from transforms.judge.decisions import LAYERS_IN_FLOAT, Decisions
from transforms.pipelines.work import Work
from transforms.plan.quant_spec import QUANTIZED_BY, WEIGHT
from transforms.plan.rounding_plan import is_downcast, is_upcast

_OF_INTEGERS = frozenset({"MatMulNBits", "DynamicQuantizeLSTM", "QMoE"})
_FORMATS = 4
"""Formats whose tensors are counted without ``--verbose``."""

_HARDLY_SMALLER = 0.9
"""Share of the bytes of the float model above which a hint names an option that stores less."""


def lines(work: Work, sizes: Sizes, in_float: Counter[str]) -> Iterator[str]:
    """Yield the summary: notes, what changed, what stayed float, sizes in bytes, where the result runs."""
    done, first = work.record, work.record.first
    assert first is not None, "the model was tried out"
    yield from done.notes
    for change, count in done.changes.items():
        if count > 0:
            yield Detail(f"{count} {change}")
    if done.calibrated:
        yield Detail(f"Calibrated: {done.calibrated} tensors")
    yield from decided(done.decisions)
    yield from _quantized(done)
    yield f"Kept in float: {counts(in_float, 'node') if in_float else 'nothing'}"
    yield written(sizes)
    if work.options.storage == "plain" and sizes.ratio > _HARDLY_SMALLER:
        yield from _unpacked(done)
    yield running.runs_line(first, work.graph)
    yield from running.rounded_line(first, work.graph)


def _quantized(done: Record) -> Iterator[str]:
    """Yield how many tensors have each format; of many formats, the first ones."""
    for place, name in enumerate(dict.fromkeys(format for format, _ in done.tensors)):
        roles = [(role, count) for (format, role), count in done.tensors.items() if format == name]
        line = f"Quantized to {name}: " + ", ".join(counted(count, role) for role, count in roles)
        yield line if place < _FORMATS else Detail(line)


def _unpacked(done: Record) -> Iterator[str]:
    """Yield which option makes the file of weights in block formats smaller."""
    if names := formats_of_blocks(done):
        way = spelled("{storage:packed}")
        yield f"Weights in {' and '.join(names)} are stored as float32: {way} makes the file smaller"


def formats_of_blocks(done: Record) -> list[str]:
    """Return the formats of weights for which ONNX has no type."""
    return [name for name, role in done.tensors if role == WEIGHT and not _has_type(name)]


def _has_type(name: str) -> bool:
    return name in FORMATS and FORMATS[name].op == LINEAR


def decided(record: Decisions) -> Iterator[str]:
    """Yield the changes that outputs decided, those that were rejected, and the error of the outputs."""
    if changed := _changes(record):
        yield f"Kept: {changed}"
    if dropped := [trial for trial in record.tried if not trial.kept]:
        words = Counter(trial.move for trial in dropped)
        yield Detail("Tried, not kept: " + ", ".join(f"{move} {count}" for move, count in words.items()))
    yield from record.notes
    if record.outputs is not None:
        yield f"Outputs: {record.outputs}"


def searched(record: Decisions) -> str:
    """Return the choices by outputs and what was not tried, in one line for a model that is refused."""
    changed = _changes(record) or "as rules say"
    best = f"the best of {counted(len(record.tried), 'candidate')}: {changed}" if record.tried else ""
    return ". ".join(filter(None, [best, *record.notes]))


def _changes(record: Decisions) -> str:
    """Return the changes that outputs chose, with their gains; layers in float have lines of their own."""
    changed = [trial for trial in record.kept if trial.move != LAYERS_IN_FLOAT]
    return "; ".join(", ".join(filter(None, (trial.change, trial.gain.shown))) for trial in changed)


def kept_in_float(graph: gs.Graph) -> Counter[str]:
    """Return how many nodes of each operator read float numbers that no quantization made."""
    ends = _ends_of_layers(graph)
    ends |= {id(node) for feature in features_of(graph) for node in feature.roundings(graph)}
    return Counter(node.op for node in walk.nodes(graph) if _computes_in_float(node, ends))


def _computes_in_float(node: gs.Node, ends: Container[int]) -> bool:
    if _quantizes(node) or id(node) in ends or node.op in _OF_INTEGERS:
        return False
    if features.reads_stored(node) or is_made_of_constants(node):
        return False
    data = [t for i, t in enumerate(node.inputs) if not is_dot_product(node) or is_operand(node, i)]
    floats = [t for t in data if isinstance(t, gs.Variable) and dtypes.is_type(t, dtypes.FLOAT)]
    return bool(floats) and not any(n.op in QUANTIZED_BY or n.op == "Cast" for t in floats for n in t.inputs)


def _quantizes(node: gs.Node) -> bool:
    pairs = node.op in QUANTIZED_BY or node.op.endswith("QuantizeLinear") or node.domain == DOMAIN
    return pairs or is_downcast(node, dtypes.BFLOAT16) or is_upcast(node, dtypes.BFLOAT16)


def _ends_of_layers(graph: gs.Graph) -> set[int]:
    """Return the ids of each Relu, Clip and Add of a bias between the output of a layer and the quantization
    after it.
    """
    ends: set[int] = set()
    for node in reversed(list(walk.nodes(graph))):  # consumers come first, those in bodies too
        consumers = [consumer for tensor in node.outputs for consumer in tensor.outputs]
        adds_bias = node.op == "Add" and any(n.op == "MatMul" for t in node.inputs for n in t.inputs)
        goes_on = adds_bias or node.op in ("Relu", "Clip")
        if goes_on and consumers and all(id(r) in ends or _quantizes(r) for r in consumers):
            ends.add(id(node))
    return ends

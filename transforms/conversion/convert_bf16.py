"""Conversion to BF16 as a composition of transforms on a loaded graph."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from transforms.conversion import inspect_bf16
from transforms.conversion.standard_form import CAST_TO_BFLOAT16, StandardForm, note_mended, standardize
from transforms.convert_opset import convert_opset
from transforms.convert_type import convert_type
from transforms.files.spelling import spelled
from transforms.fix_shapes import fix_shapes
from transforms.fold_weights import fold_weights
from transforms.graph.number_shapes import NumberShapes
from transforms.graph.selection import NodeSet, Selection, select
from transforms.insert_bf16_qdq import insert_bf16_qdq
from transforms.insert_cast import insert_cast
from transforms.lower_opset import lower_opset
from transforms.model.read_model import ModelError
from transforms.runtime_workarounds import leave_out_biases
from transforms.saturate import saturate, tensors_with_nan
from transforms.saturate_activations import saturate_activations
from transforms.simulate_bf16 import simulate_bf16
from transforms.write_out_axes import write_out_axes

BFLOAT16_OPSET = 22
"""First opset in which Conv, pooling and recurrent operators take bfloat16."""


@dataclass(frozen=True)
class Bf16Options:
    """Options of converting a graph to BF16, named as on the converters' command line except for ``kernels``.

    ``format``: with_cast, customqdq, simulate_bf16 or bf16; ``weights``: bfloat16 or float32; ``domain``: of
    the operators of customqdq; ``opset`` of the result, 0 for that of the model or the lowest that its nodes
    need; ``input_shapes``: fixed shapes for free dimensions of inputs, by name; ``kernels``: operators that
    the runtime of the format bf16 computes in bfloat16, empty for all.
    """

    format: str = "with_cast"
    weights: str = "bfloat16"
    domain: str = "ai.onnx.contrib"
    keep_io_types: bool = True
    exclude_node: tuple[str, ...] = ()
    exclude_op: tuple[str, ...] = ()
    saturate_activations: bool = False
    optimize: bool = True
    strict: bool = False
    opset: int = 0
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    kernels: tuple[str, ...] = ()

    def excluding(self, patterns: Iterable[str]) -> Bf16Options:
        """Return the options with further patterns of nodes that stay float."""
        return dataclasses.replace(self, exclude_node=(*self.exclude_node, *patterns))


@dataclass
class Conversion:
    """The record of a conversion, for the summary."""

    format: str
    tensors: int = 0
    saturated: list[str] = field(default_factory=list)
    fused: Counter[str] = field(default_factory=Counter)
    tally: inspect_bf16.Tally | None = None
    notes: list[str] = field(default_factory=list)


def convert_bf16(graph: gs.Graph, options: Bf16Options) -> Conversion:
    """Convert a graph to BF16 in place, after :func:`transforms.lift_constants.lift_constants`.

    Raises ValueError for names that match nothing and, if ``strict``, for NaN in weights.
    """
    done = Conversion(options.format)
    leave_out_biases(graph)
    _check_nan(graph, options, done)
    exclude = prepare_bf16(graph, options, done)
    _raise_opset(graph, options)
    note_mended(graph, done.notes)
    excluded = exclude.resolve_in(graph)  # once: later it would also select inserted nodes
    deciding = NodeSet(NumberShapes(graph).decided.nodes.values())
    float_nodes = excluded | deciding
    saturate(graph, exclude=float_nodes, names=done.saturated)
    if options.saturate_activations:
        saturate_activations(graph, exclude=float_nodes, keep_io_types=options.keep_io_types)
    done.tensors = _write_format(graph, float_nodes, options)
    done.tally = inspect_bf16.tally(graph, excluded, options.format, deciding)
    return done


def prepare_bf16(graph: gs.Graph, options: Bf16Options, done: Conversion) -> Selection:
    """Prepare a graph in place, before any rounding; return the nodes that stay float."""
    fix_shapes(graph, options.input_shapes)
    write_out_axes(graph)
    if options.opset:
        lower_opset(graph, options.opset)
    exclude = select(graph, names=options.exclude_node, op_types=options.exclude_op)
    form = StandardForm(options.optimize, True, options.keep_io_types, options.opset, keep_tied=True)
    standard = standardize(graph, exclude, form)
    done.fused = Counter({name.removesuffix(" fused"): count for name, count in standard.changes.items()})
    done.notes += standard.notes
    return exclude


def _check_nan(graph: gs.Graph, options: Bf16Options, done: Conversion) -> None:
    names = tensors_with_nan(graph)
    if not names:
        return
    message = f"NaN in {len(names)} weights: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
    if options.strict:
        raise ValueError(message)
    done.notes.append(f"{message} (kept; {spelled('{strict}')} refuses them)")


def _raise_opset(graph: gs.Graph, options: Bf16Options) -> None:
    """Raise a graph to the opset that the format needs or that was requested; ModelError if that is lower."""
    needed = BFLOAT16_OPSET if options.format == "bf16" else CAST_TO_BFLOAT16
    if 0 < options.opset < needed:
        raise ModelError(f"opset {options.opset} is too low for format {options.format}: it needs {needed}")
    convert_opset(graph, max(needed, options.opset), newest=options.opset)


def _write_format(graph: gs.Graph, exclude: NodeSet, options: Bf16Options) -> int:
    if options.format == "simulate_bf16":
        return simulate_bf16(graph, exclude=exclude, keep_io_types=options.keep_io_types)
    if options.format == "bf16":
        count = convert_type(
            graph, exclude=exclude, keep_io_types=options.keep_io_types, kernels=options.kernels
        )
    elif options.format == "customqdq":
        count = insert_bf16_qdq(
            graph, domain=options.domain, exclude=exclude, keep_io_types=options.keep_io_types
        )
    else:
        count = insert_cast(graph, exclude=exclude, keep_io_types=options.keep_io_types)
    if options.weights == "bfloat16":
        fold_weights(graph)
    return count

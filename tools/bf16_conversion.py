"""The conversion to BF16 as a composition of transforms, shared by both converters."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from tools import bf16_summary
from tools.output_file import total_bytes
from transforms import bf16_state, model_io, provenance, runtime_check
from transforms.convert_opset import convert_opset
from transforms.convert_type import convert_type
from transforms.fold_weights import fold_weights
from transforms.insert_cast import insert_cast
from transforms.insert_qdq import insert_qdq
from transforms.lift_constants import lift_constants
from transforms.prepare import prepare
from transforms.saturate import saturate, tensors_with_nan
from transforms.saturate_activations import saturate_activations
from transforms.selection import Selection, select
from transforms.simulate_bf16 import simulate_bf16

BFLOAT16_OPSET = 22
"""First opset in which Conv, pooling and recurrent operators take bfloat16."""

_RECORDED = (
    "format", "weights", "domain", "keep_io_types", "exclude_node", "exclude_op", "saturate_activations",
    "optimize",
)  # fmt: skip


@dataclass
class Conversion:
    """What a conversion did, for the summary."""

    format: str
    tensors: int = 0
    saturated: int = 0
    fused: Counter[str] = field(default_factory=Counter)
    tally: bf16_state.Tally | None = None
    notes: list[str] = field(default_factory=list)


def convert_file(tool: str, source: str, options: argparse.Namespace) -> None:
    """Convert ``options.input`` to ``options.output`` and print what was done.

    Raises ValueError or OSError; nothing is written then.
    """
    external = options.save_as_external_data
    output = model_io.check_output(options.output, options.input, force=options.force, external_data=external)
    graph = model_io.load(options.input)
    lift_constants(graph)
    before = bf16_state.describe(graph)
    if before.converted:
        print(f"Nothing to do: '{options.input}' is a BF16 model already ({before.format}).")
        return
    bf16_state.require(before, source, options.input)
    done = convert(graph, options)
    if not done.tensors:
        print(f"Nothing to do: no tensor of '{options.input}' is left to round.")
        return
    recorded = {name: getattr(options, name) for name in _RECORDED}
    entries = provenance.entries(tool, recorded, graph.source_sha256)
    files = model_io.save(graph, output, metadata=entries, external_data=external, force=options.force)
    sizes = total_bytes(graph.source_files), total_bytes(files)
    for line in bf16_summary.lines(done, *sizes, files[0], runtime_check.why_not_on_cpu(graph)):
        print(line)


def convert(graph: gs.Graph, options: argparse.Namespace) -> Conversion:
    """Make a graph BF16 in place, following the options of the command line."""
    done = Conversion(options.format)
    _check_nan(graph, options, done)
    exclude = select(graph, names=options.exclude_node, op_types=options.exclude_op)
    prepared = prepare(
        graph,
        exclude,
        optimized=options.optimize,
        merge_products=True,
        keep_io_types=options.keep_io_types,
    )
    done.fused = prepared.fused
    done.notes += prepared.notes
    if options.format == "bf16":
        convert_opset(graph, BFLOAT16_OPSET)
    exclude = exclude.follow(graph)
    done.saturated = saturate(graph, exclude=exclude)
    if options.saturate_activations:
        saturate_activations(graph, exclude=exclude, keep_io_types=options.keep_io_types)
    done.tensors = _write_format(graph, exclude, options)
    done.tally = bf16_state.tally(graph, exclude, options.format)
    return done


def _check_nan(graph: gs.Graph, options: argparse.Namespace, done: Conversion) -> None:
    names = tensors_with_nan(graph)
    if not names:
        return
    message = f"NaN in {len(names)} weights: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
    if options.strict:
        raise ValueError(message)
    done.notes.append(f"{message} (kept; --strict refuses them)")


def _write_format(graph: gs.Graph, exclude: Selection, options: argparse.Namespace) -> int:
    common = {"exclude": exclude, "keep_io_types": options.keep_io_types}
    if options.format == "simulate_bf16":
        return simulate_bf16(graph, **common)
    if options.format == "bf16":
        count = convert_type(graph, **common)
    elif options.format == "customqdq":
        count = insert_qdq(graph, domain=options.domain, **common)
    else:
        count = insert_cast(graph, **common)
    if options.weights == "bfloat16":
        fold_weights(graph)
    return count

"""What both converters to BF16 do once their options are known to be right."""

from __future__ import annotations

import argparse

import onnx_graphsurgeon as gs

from tools.cli.data_options import image_options, report_litter
from tools.cli.output_file import total_bytes
from tools.cli.progress import Progress
from tools.summaries import bf16
from transforms import model_io
from transforms.keep_float.keep import KeptFloat, keep_float
from transforms.lift_constants import lift_constants
from transforms.model import provenance
from transforms.pipelines import inspect_bf16
from transforms.pipelines.convert_bf16 import Bf16Options, convert_bf16
from transforms.run.feeds import open_feeds
from transforms.runtime.inputs import model_inputs
from transforms.runtime.session import RunOptions, why_not_on_cpu
from transforms.search.target import TargetError

_RECORDED = (
    "format", "weights", "domain", "keep_io_types", "exclude_node", "exclude_op", "saturate_activations",
    "optimize",
)  # fmt: skip


def convert_file(tool: str, source: str, options: argparse.Namespace) -> None:
    """Convert ``options.input`` to ``options.output`` and print what was done.

    Raises ValueError or OSError; nothing is written then.
    """
    external = options.save_as_external_data
    output = model_io.check_output(options.output, options.input, force=options.force, external_data=external)
    graph = model_io.load(options.input)
    lift_constants(graph)
    before = inspect_bf16.describe(graph)
    if before.converted:
        print(f"Nothing to do: '{options.input}' is a BF16 model already ({before.format}).")
        return
    inspect_bf16.require(before, source, options.input)
    chosen = bf16_options(options)
    kept = None if options.min_sqnr is None else _keep(graph, chosen, options)
    chosen = chosen.excluding(kept.patterns) if kept else chosen
    done = convert_bf16(graph, chosen)
    if not done.tensors:
        _refuse_float(kept, options)
        print(f"Nothing to do: no tensor of '{options.input}' is left to round.")
        return
    entries = provenance.entries(tool, _recorded(chosen, options), graph.source_sha256)
    files = model_io.save(graph, output, metadata=entries, external_data=external, force=options.force)
    sizes = total_bytes(graph.source_files), total_bytes(files)
    for line in bf16.lines(done, graph, *sizes, files[0], why_not_on_cpu(graph)):
        print(line)
    for line in bf16.sqnr_lines(kept, options.min_sqnr) if kept else ():
        print(line)


def bf16_options(options: argparse.Namespace) -> Bf16Options:
    """Return what the command line says of the conversion."""
    return Bf16Options(
        format=options.format,
        weights=options.weights,
        domain=options.domain,
        keep_io_types=options.keep_io_types,
        exclude_node=tuple(options.exclude_node),
        exclude_op=tuple(options.exclude_op),
        saturate_activations=options.saturate_activations,
        optimize=options.optimize,
        strict=options.strict,
    )


def _keep(graph: gs.Graph, chosen: Bf16Options, options: argparse.Namespace) -> KeptFloat:
    """Return what has to stay float, with a progress bar that shows the last SQNR."""
    report_litter(options.data)
    source = open_feeds(options.data, model_inputs(graph), images=image_options(options), limit=options.limit)
    feeds = [feed for _, feed in source]
    run = RunOptions(options.provider, options.threads)
    with Progress("measuring", "model") as bar:
        return keep_float(
            graph,
            chosen,
            feeds,
            options.min_sqnr,
            run=run,
            progress=lambda done, note: bar.show(done, None, note),
        )


def _refuse_float(kept: KeptFloat | None, options: argparse.Namespace) -> None:
    if kept and kept.patterns:
        raise TargetError(
            f"only with every node of '{options.input}' in float32 the SQNR is at least {options.min_sqnr:g} "
            f"dB; it is {kept.before:.2f} dB with none"
        )


def _recorded(chosen: Bf16Options, options: argparse.Namespace) -> dict[str, object]:
    recorded = {name: getattr(chosen, name) for name in _RECORDED}
    return recorded if options.min_sqnr is None else recorded | {"min_sqnr": options.min_sqnr}

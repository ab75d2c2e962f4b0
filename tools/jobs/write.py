"""Writing a quantized model and saying what was done, for all tools that make one."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import onnx_graphsurgeon as gs

from tools.cli.output_file import total_bytes
from tools.summaries import quantize
from transforms import model_io
from transforms.pipelines.quantize_graph import Quantized
from transforms.runtime.session import why_not_on_cpu


def write_quantized(
    graph: gs.Graph, done: Quantized, output: Path, entries: Mapping[str, str], options: argparse.Namespace
) -> None:
    """Write a model with entries of metadata, and print the summary.

    Raises ValueError or OSError; nothing is written then.
    """
    external = options.save_as_external_data
    files = model_io.save(graph, output, metadata=entries, external_data=external, force=options.force)
    sizes = total_bytes(graph.source_files), total_bytes(files)
    for line in quantize.lines(done, graph, *sizes, files[0], why_not_on_cpu(graph)):
        print(line)

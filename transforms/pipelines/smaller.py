"""Which presets make the file of a model smaller that another scheme did not: found by trying."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_graphsurgeon as gs

from transforms.judge.budget import too_large
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import preset

TRIED = ("A8W8_DYNAMIC", "W8")
"""Presets that need no samples, which a result is measured against."""


def smaller_presets(load: Callable[[], gs.Graph], most: int) -> Iterator[tuple[str, int]]:
    """Yield the presets that store a model in fewer bytes than ``most``, with these, the smallest first.

    ``load`` returns the float model anew. None for a model that is too large to be built only for that.
    """
    found = []
    for name in TRIED:
        graph = load()
        if too_large(graph):
            return
        try:
            count = quantize_graph(graph, preset(name).with_(move_outliers=False)).count
            size = graph_proto.export_model(graph).ByteSize() if count else most
        except ValueError:  # as for the scheme before, whose errors were told
            continue
        if size < most:
            found.append((size, name))
    yield from ((name, size) for size, name in sorted(found))

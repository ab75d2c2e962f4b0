"""Which presets make the file of a model smaller that another scheme did not: found by trying."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_graphsurgeon as gs

from transforms.judge.budget import too_large
from transforms.model import graph_proto
from transforms.pipelines.in_memory import IN_MEMORY
from transforms.pipelines.steps import run
from transforms.pipelines.work import Work
from transforms.scheme import Scheme, preset

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
        size = bytes_by_rule(graph, preset(name))
        if size is not None and size < most:
            found.append((size, name))
    yield from ((name, size) for size, name in sorted(found))


def bytes_by_rule(graph: gs.Graph, scheme: Scheme) -> int | None:
    """Return the bytes of a graph, which is changed, by a scheme of rules; None if it takes none."""
    try:
        work = run(Work(graph, scheme.with_(move_outliers=False)), IN_MEMORY)
    except ValueError:
        return None
    return graph_proto.export_model(work.graph).ByteSize() if work.record.count else None

"""Layers that a job keeps until its model is written, by all that their weights depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_graphsurgeon as gs

from transforms.graph.some_names import counted
from transforms.model.graph_proto import model_hash
from transforms.pipelines.work import Work

if TYPE_CHECKING:
    from transforms.finetune.finished_layers import LayerFiles


def finished_layers(work: Work, float_graph: gs.Graph, *more: str) -> LayerFiles | None:
    """Return where the layers of a job are kept, None where they are not.

    ``more``: what their weights depend on beside the float model, the scheme and the samples. A line tells of
    layers that are there already, and a warning of those that are not used.
    """
    kept = work.options.finished
    if kept is None or work.data is None:
        return None
    others, run = kept.others, work.data.run or work.options.run
    read = work.data.feeds(float_graph).hash(), run.provider, str(work.data.memory_limit)
    found = kept.walk(model_hash(float_graph), work.scheme.to_toml(), *read, *more)
    if kept.others > others:
        unused = f"{counted(kept.others, 'layer')} of another model, scheme or other samples"
        work.events.warn(f"Warning: '{kept.folder}' holds {unused}: not used")
    if found.count:
        work.events.note(f"Resumed: {counted(found.count, 'layer')} were finished in '{kept.folder}'")
    return found

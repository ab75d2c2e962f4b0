"""Find the finished layers of an interrupted job, by a key of all that their weights depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_graphsurgeon as gs

from transforms.graph.some_names import counted
from transforms.model.graph_proto import model_hash
from transforms.pipelines.work import Work

if TYPE_CHECKING:
    from transforms.finetune.finished_layers import LayerFiles


def finished_layers(work: Work, float_graph: gs.Graph, *more: str) -> LayerFiles | None:
    """Return the files of finished layers of a job; None if layers are not kept.

    ``more``: further inputs of the weights, besides the float model, the scheme and the samples. A note tells
    how many layers are finished already, a warning how many files belong to other jobs.
    """
    store = work.options.finished
    if store is None or work.data is None:
        return None
    before, run = store.others, work.data.run or work.options.run
    digests = work.data.feeds(float_graph).hash(), run.provider, str(work.data.memory_limit)
    files = store.walk(model_hash(float_graph), work.scheme.to_toml(), *digests, *more)
    if store.others > before:
        unused = f"{counted(store.others, 'layer')} of another model, scheme or other samples"
        work.events.warn(f"Warning: '{store.folder}' holds {unused}: not used")
    if files.count:
        work.events.note(f"Resumed: {counted(files.count, 'layer')} were finished in '{store.folder}'")
    return files

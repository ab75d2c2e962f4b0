"""Step: convert weights of block formats to their stored form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_graphsurgeon as gs

from ops.formats import Format
from transforms.graph.some_names import counted
from transforms.pack_weights import PackedWeights, pack_weights
from transforms.pipelines.work import Work


def store(work: Work) -> None:
    """Convert weights to the form that the options ask for, and record lines on it."""
    work.record.stored += stored(work.graph, work.options.storage, work.scheme.named_formats)


def stored(graph: gs.Graph, storage: str, formats: Sequence[Format] = ()) -> list[str]:
    """Convert weights to their stored form, in place; return lines on it.

    ``formats``: those that weights may have, by default those recorded in the model.
    """
    if storage == "plain":
        return []
    done = PackedWeights()
    pack_weights(graph, formats, done=done)
    return list(_packed(done))


def _packed(done: PackedWeights) -> Iterator[str]:
    if not done.formats:
        yield "Packed: nothing, no weight is stored in a block format; integers have their bits already"
        return
    counts = ", ".join(f"{counted(count, 'weight')} in {name}" for name, count in done.formats.items())
    bits = 8 * done.after / done.elements
    yield f"Packed: {counts}, {done.before:,} -> {done.after:,} bytes, {bits:.2f} bits per element"
    if done.left:
        yield "Left as float32: " + ", ".join(f"{count} {why}" for why, count in done.left.items())

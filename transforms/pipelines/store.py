"""Step: bring weights of block formats into the form in which they are to be stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_graphsurgeon as gs

from ops.formats import Format
from transforms.graph.some_names import counted
from transforms.pack_weights import PackedWeights, pack_weights
from transforms.pipelines.work import Work


def store(work: Work) -> None:
    """Store weights as the options say; the record has lines on it."""
    work.record.stored += stored(work.graph, work.options.storage, work.scheme.named_formats)


def stored(graph: gs.Graph, storage: str, formats: Sequence[Format] = ()) -> list[str]:
    """Bring weights into the form in which they are to be stored; return lines on it.

    ``formats`` are those that they may have, by default those that the model tells of.
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
    what = ", ".join(f"{counted(count, 'weight')} in {name}" for name, count in done.formats.items())
    bits = 8 * done.after / done.elements
    yield f"Packed: {what}, {done.before:,} -> {done.after:,} bytes, {bits:.2f} bits per element"
    if done.left:
        yield "Left as float32: " + ", ".join(f"{count} {why}" for why, count in done.left.items())

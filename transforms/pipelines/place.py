"""Step: leave layers in float that are faster so on this machine, for a target that runs here."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import onnx_graphsurgeon as gs

from transforms.pipelines.rebuild import nameable, rebuilt, take_over
from transforms.pipelines.work import Work
from transforms.scheme import Scheme


def place(work: Work) -> None:
    """Find the layers that are faster in float, by whole models that take turns, and build the model so.

    For the target ``ort-cpu``.
    """
    from transforms.precision.place import faster_in_float  # imports take time that small jobs notice

    assert work.data is not None, "outputs are compared on samples"
    work.events.phase("timing layers")
    feed = next(feed for _, feed in work.data.feeds(work.graph))
    sample = replace(work.data, source=[feed], limit=None, images=None, cache=None, workers=None)

    def _build(scheme: Scheme) -> gs.Graph | None:
        other = rebuilt(work, scheme, sample)
        return other.graph if other.record.count else None

    first = work.graph, work.scheme
    try:
        work.record.placed = faster_in_float(
            first, work.float_form(), partial(nameable, work), _build, feed, work.options.run
        )
    except Exception as error:  # the runtime's exceptions share no narrower class
        work.events.note(f"Layers not timed: {error}")
        return
    if work.record.placed.layers:
        take_over(work, rebuilt(work, work.record.placed.scheme))

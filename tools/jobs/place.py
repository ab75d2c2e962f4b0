"""What ``tools.quantize`` does for ONNX Runtime on this machine: layers that are faster in float stay so."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_graphsurgeon as gs

from tools.cli.said import say
from tools.jobs.load import load_for
from tools.jobs.quantize_options import QuantizeJob
from tools.summaries.timing import times
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.conversion.record import Record
from transforms.graph.some_names import counted, some_names
from transforms.precision.place import FloatLayers, faster_in_float
from transforms.scheme import Scheme
from transforms.scheme.targets import ON_CPU

Quantize = Callable[[gs.Graph, Scheme, CalibrationData], Record]
"""Quantizes a float model in place, by a scheme in which nothing is open."""


def places(job: QuantizeJob, scheme: Scheme) -> bool:
    """Return whether layers stay float that are faster so, if outputs are looked at, too."""
    return job.time and scheme.keep_float and scheme.target == ON_CPU


def find_layers(
    first: tuple[gs.Graph, Scheme],
    floats: Callable[[], gs.Graph],
    quantize: Quantize,
    data: CalibrationData,
    job: QuantizeJob,
) -> FloatLayers | None:
    """Return, and say, the layers that are faster in float on this machine; None if the model cannot run.

    ``first``: the model and its scheme; ``floats`` returns the float model. Whole models are timed on the
    first sample.
    """
    _, feed = next(iter(data.feeds(first[0])))
    one = CalibrationData([feed], run=job.run)

    def _build(scheme: Scheme) -> gs.Graph | None:
        graph = load_for(job, scheme)
        return graph if quantize(graph, scheme, one).count else None

    def _load() -> gs.Graph:
        return load_for(job, first[1])

    try:
        found = faster_in_float(first, floats(), _load, _build, feed, job.run)
    except Exception as error:  # the runtime's exceptions share no narrower class
        say(f"Layers are not timed: {error}")
        return None
    for line in _lines(found) if found.layers else ():
        say(line)
    return found


def _lines(found: FloatLayers) -> Iterator[str]:
    """Yield which layers stay float, what it brings, and its price."""
    assert found.ratio is not None, "there are layers"
    layers = f"{len(found.layers)} of {counted(found.count, 'layer')}: {some_names(found.layers)}"
    yield f"In float, where they are faster here: {layers}"
    price = f"{found.more_bytes:+,} bytes of stored numbers"
    yield f"  {times(found.ratio)} the time with all in integers, {price}"

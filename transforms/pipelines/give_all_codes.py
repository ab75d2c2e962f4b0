"""From samples and ranges to a quantized model that uses all codes of int8, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs

from ops.formats import FORMATS
from transforms.all_codes.settle_codes import MOST_LARGE, MOST_SAMPLES, SettledCodes, settle_codes
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.calibrate.calibration import Calibration
from transforms.choose_ranges.float_runs import FloatRuns
from transforms.choose_ranges.work import too_large
from transforms.graph import dtypes
from transforms.judge.first_samples import FirstSamples
from transforms.pipelines.quantize_steps import Quantized
from transforms.run.tensor_sizes import is_small_feed
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme
from transforms.scheme.scheme_values import ADDED, FREE, OFF

_INT8 = "int8"
_ROOM = 8 / 7
"""Times the range with a zero point at its end: finer steps leave room for numbers of new data."""

_TOO_LARGE = "All codes of int8 not used: the model is too large to compare outputs, or memory is limited"


def samples_for_codes(
    graph: gs.Graph, scheme: Scheme, data: CalibrationData | None, done: Quantized
) -> FirstSamples | None:
    """Return samples to compare outputs on; None, with a note if that is why, if codes stay as they are."""
    if scheme.all_codes == OFF or data is None or not data.decides:
        return None
    if scheme.activation != _INT8 or scheme.keep_weight_nodes:  # sums of weights are those of integers
        return None
    if too_large(graph) or data.memory_limit is not None:
        done.codes = _TOO_LARGE
        return None
    return FirstSamples(data.feeds(graph), graph, MOST_SAMPLES)


def give_all_codes(
    graph: gs.Graph,
    float_graph: gs.Graph,
    samples: FirstSamples,
    calibration: Calibration,
    codes: str,
    run: RunOptions | None,
    done: Quantized,
    floats: FloatRuns | None = None,
) -> None:
    """Let tensors of a quantized graph use all codes, in place, if its outputs are better, and say so.

    ``floats``: runs of the float model on these samples, if there were any, maybe in another form.
    Grids that are kept become those of the shifted tensors: their lowest code stands for 0.
    """
    ends = calibration.extremes()
    inputs = {
        tensor.name
        for tensor in graph.inputs
        if dtypes.is_type(tensor, dtypes.FLOAT) and ends.get(tensor.name, (-1.0,))[0] >= 0
    }
    padded, added = codes != FREE, codes == ADDED
    feeds = samples.again()
    feeds = feeds if all(map(is_small_feed, feeds)) else feeds[:MOST_LARGE]
    if not padded:
        inputs = set()
    tops, ranges = _tops(graph, calibration), _ranges(graph, calibration)
    if floats is None or not floats.is_of(float_graph):
        floats = FloatRuns(float_graph, feeds, run)
    settled = settle_codes(
        graph, floats, len(feeds), inputs, padded=padded, added=added, tops=tops, ranges=ranges, run=run
    )
    done.codes, done.shifted = _said(settled, added=added), settled.count
    for number, grid in enumerate(done.grids or ()):
        if grid.name in settled.steps and grid.format == _INT8 and done.grids is not None:
            scale, zero = np.float32(settled.steps[grid.name]), np.zeros_like(grid.zero_point)
            done.grids[number] = replace(grid, scale=np.full_like(grid.scale, scale), zero_point=zero)


def _tops(graph: gs.Graph, calibration: Calibration) -> dict[str, float]:
    """Return the upper ends of ranges with a zero point of tensors that are quantized and never negative."""
    quantized = {node.inputs[0].name for node in graph.nodes if node.op == "QuantizeLinear"}
    names = [name for name, (low, _) in calibration.extremes().items() if low >= 0 and name in quantized]
    int8 = FORMATS[_INT8]
    return {name: _ROOM * calibration.range(name, int8, symmetric=False)[1] for name in names}


def _ranges(graph: gs.Graph, calibration: Calibration) -> dict[str, tuple[float, float]]:
    """Return ranges with a zero point of tensors that are quantized.

    The end nearer to zero is wider by what it differs between halves of the samples: a scale without a zero
    point leaves it room, and new data use that.
    """
    quantized = {node.inputs[0].name for node in graph.nodes if node.op == "QuantizeLinear"}
    found: dict[str, tuple[float, float]] = {}
    for name in sorted(calibration.extremes().keys() & quantized):
        ends = calibration.range(name, FORMATS[_INT8], symmetric=False)
        low, high = min(ends[0], 0.0), max(ends[1], 0.0)
        below, above = calibration.differences(name)
        found[name] = max(low * below, min(low, -high)), min(high * above, max(high, -low))
    return found


def _said(settled: SettledCodes, *, added: bool) -> str:
    count = settled.count or settled.refused
    tensors = "1 tensor" if count == 1 else f"{count} tensors"
    if settled.refused:
        return f"All codes of int8 not used in {tensors}: outputs gain nothing"
    tensors += "" if settled.signed else " without negative numbers"
    several = "Pads, Adds and Subs" if added else "Pads and Subs"
    one = "Pad, Add or Sub" if added else "Pad or Sub"
    nodes = f"1 {one}" if settled.added == 1 else f"{settled.added} {several}"
    more = f"; {nodes} added, which --all-codes free leaves out" if settled.added else ""
    return f"All codes of int8 used: {tensors}{more}" if count else ""

"""From samples and ranges to a quantized model that uses all codes of int8, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs

from ops.formats import FORMATS
from transforms.all_codes.settle_codes import MOST_LARGE, MOST_SAMPLES, SettledCodes, settle_codes
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.calibrate.calibration import Calibration
from transforms.choose_ranges.first_samples import FirstSamples
from transforms.choose_ranges.float_runs import FloatRuns
from transforms.choose_ranges.output_views import before_saturation
from transforms.choose_ranges.work import too_large
from transforms.graph import dtypes
from transforms.pipelines.quantize_steps import Quantized
from transforms.run.tensor_sizes import is_small_feed
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme
from transforms.scheme.scheme_values import OFF, PADDED

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
    padded = codes == PADDED
    feeds = samples.again()
    feeds = feeds if all(map(is_small_feed, feeds)) else feeds[:MOST_LARGE]
    if not padded:
        inputs = set()
    tops = _tops(graph, calibration)
    if floats is None or floats.views != before_saturation(float_graph).keys():
        floats = FloatRuns(float_graph, feeds, run)
    settled = settle_codes(graph, floats, len(feeds), inputs, padded=padded, tops=tops, run=run)
    done.codes, done.shifted = _said(settled), settled.count
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


def _said(settled: SettledCodes) -> str:
    count = settled.count or settled.refused
    tensors = "1 tensor" if count == 1 else f"{count} tensors"
    if settled.refused:
        return f"All codes of int8 not used in {tensors} without negative numbers: outputs gain nothing"
    nodes = "1 Pad or Sub" if settled.added == 1 else f"{settled.added} Pads and Subs"
    added = f"; {nodes} added, which --all-codes free leaves out" if settled.added else ""
    return f"All codes of int8 used: {tensors} without negative numbers{added}" if count else ""

"""Measure the statistics of a float model that a quantization plan needs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import onnx_graphsurgeon as gs

from transforms.calibrate.calibrate import Calibration, Progress, calibrate
from transforms.calibrate.calibration import options_of
from transforms.calibrate.calibration_data import CalibrationData, MissingDataError
from transforms.graph.dot_products import TensorAxis
from transforms.plan.bias_correction import corrected_inputs
from transforms.plan.quantization_plan import WEIGHTED, QuantizationPlan, weighed_inputs

__all__ = ["CalibrationData", "MissingDataError", "calibrate_plan"]


def calibrate_plan(
    plan: QuantizationPlan | Sequence[QuantizationPlan],
    data: CalibrationData | None,
    *,
    progress: Progress | None = None,
    halved: bool = False,
    folded: bool = False,
    most: int | None = None,
    means: bool = False,
    known: Collection[str] = (),
) -> Calibration | None:
    """Return the statistics that a plan needs; None, without reading data, if it needs none.

    ``halved``: with histograms, and of halves of the samples, too, whatever the scheme needs. ``folded``: of
    each fold, too. ``most``: number of values up to which histograms are made that the scheme does not need;
    a cache always has them. ``means``: also channel means for bias correction, whether or not the scheme
    corrects biases. ``known``: tensors to skip.

    Several plans, of copies of one graph, are measured together: ranges of all tensors that become integers,
    and the mean squares that weight errors of weights, which alone do not require data unless the scheme
    names the method. Raises MissingDataError without data, and ValueError as
    :func:`transforms.calibrate.calibrate.calibrate` and its cache do.
    """
    # which ranges and channel moments do the plans need?
    plans = [plan] if isinstance(plan, QuantizationPlan) else plan
    plan, scheme = plans[0], plans[0].scheme
    needed = dict.fromkeys(tensor.name for each_plan in plans for tensor in each_plan.measured())
    names = [name for name in needed if name not in known]
    corrected = data is not None and scheme.correct_biases is True
    wanted = bool(names) or scheme.weight_method == WEIGHTED or corrected
    channels = (
        list(dict.fromkeys(pair for each_plan in plans for pair in _channels(each_plan, means)))
        if wanted
        else []
    )
    channels = [(name, axis) for name, axis in channels if name not in known]
    if not names and not channels:
        return None
    if data is None:
        asked = [*dict.fromkeys((*names, *(name for name, _ in channels)))]
        raise MissingDataError(
            f"{len(asked)} tensors need ranges, '{asked[0]}' the first, and there are no calibration data"
        )
    # halves are compared by MSE for any format, which takes histograms
    options = replace(options_of(scheme), memory_limit=data.memory_limit)
    if options.needs_histogram:
        most = None
    if halved:
        options = replace(options, method="MSE", moving_average=False, tensors={})
    inputs = plan.graph, names, data.feeds(plan.graph), options
    how: dict[str, Any] = {"run": data.run, "workers": data.workers, "progress": progress}
    how |= {"halved": halved, "folded": folded}
    if data.cache is None:
        calibration = calibrate(*inputs, channels=channels, most=most, **how)
    else:
        from transforms.calibrate.cache import calibrate_cached

        calibration = calibrate_cached(data.cache, *inputs, channels=channels, **how)[0]
    _refuse_infinite(calibration, plan.graph)
    return calibration.with_empty(_joined_into(calibration, plan.graph))


def _refuse_infinite(calibration: Calibration, graph: gs.Graph) -> None:
    """Raise ValueError for an output of a model without a finite number in any sample."""
    for tensor in graph.outputs:
        statistics = calibration.observed.get(tensor.name)
        if statistics is not None and statistics.is_empty and statistics.count:
            raise ValueError(f"tensor '{tensor.name}' has no range: no sample has a finite number in it")


def _joined_into(calibration: Calibration, graph: gs.Graph) -> dict[str, str]:
    """Return, for each tensor that is empty in every sample, the result of the Concat that reads it.

    New tokens are appended to an empty cache, which holds them later: its numbers are those of the result.
    """
    return {
        name: str(node.outputs[0].name)
        for node in graph.nodes
        if node.op == "Concat"
        for name in (str(tensor.name) for tensor in node.inputs)
        if name in calibration.observed and not calibration.observed[name].count
    }


def _channels(plan: QuantizationPlan, means: bool) -> list[TensorAxis]:
    corrects = means or plan.scheme.correct_biases is True
    return [*weighed_inputs(plan), *(corrected_inputs(plan) if corrects else ())]

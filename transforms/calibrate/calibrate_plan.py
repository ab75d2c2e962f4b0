"""Measuring the statistics of a float model that a quantization plan needs."""

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
    """Return the statistics that a plan needs, or None, without reading data, if it needs none.

    ``halved``: with histograms, and of halves of the samples, too, whatever the scheme needs. ``folded``: of
    each fold, too. ``most``:
    numbers up to which histograms are made that the scheme does not need; those of a cache are always there.
    ``means``: of channels, by which biases are corrected, too, whether or not the scheme does. ``known``:
    tensors that are left out.

    Several plans, of copies of one graph, are measured together: ranges of all tensors that become integers,
    and the mean squares by which errors of weights are weighted, which alone do not ask for data unless the
    scheme names the method. Raises MissingDataError without data, and ValueError as
    :func:`transforms.calibrate.calibrate.calibrate` and its cache do.
    """
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


def _refuse_infinite(found: Calibration, graph: gs.Graph) -> None:
    """Raise ValueError for an output of a model without a finite number in any sample."""
    for tensor in graph.outputs:
        one = found.observed.get(tensor.name)
        if one is not None and one.is_empty and one.count:
            raise ValueError(f"tensor '{tensor.name}' has no range: no sample has a finite number in it")


def _joined_into(found: Calibration, graph: gs.Graph) -> dict[str, str]:
    """Return the result of a Concat for each tensor that it joins and that is empty in every sample.

    What a step adds to an empty cache is what it holds later: its numbers are those of the result.
    """
    return {
        name: str(node.outputs[0].name)
        for node in graph.nodes
        if node.op == "Concat"
        for name in (str(tensor.name) for tensor in node.inputs)
        if name in found.observed and not found.observed[name].count
    }


def _channels(plan: QuantizationPlan, means: bool) -> list[TensorAxis]:
    corrects = means or plan.scheme.correct_biases is True
    return [*weighed_inputs(plan), *(corrected_inputs(plan) if corrects else ())]

"""What ``tools.quantize`` does by the model's outputs: scales of few bits, and a word if little is left."""

from __future__ import annotations

import math
import sys
from itertools import islice

import onnx_graphsurgeon as gs

from tools.cli.progress import Phases
from tools.jobs.quantize_options import QuantizeJob
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.finetune.fit_scales import MOST_SAMPLES, FittedScales, fit_scales, has_few_bits, options_for
from transforms.finetune.float_error import float_error
from transforms.run.failing_samples import failing
from transforms.scheme import Scheme
from transforms.scheme.presets import PRESETS
from transforms.scheme.scheme import AUTO

LEAST = 10.0
"""Signal against error of the outputs, in dB, below which the result is called poor."""

_MADE = "the quantized model"
_FEW = 4  # samples that outputs are measured on
_WIDER = {"A8W8": "A16W8", "U8S8": "U16S8"}
"""Presets of the same weights whose activations have 16 bits."""


def by_outputs(
    graph: gs.Graph,
    reference: gs.Graph,
    scheme: Scheme,
    data: CalibrationData,
    job: QuantizeJob,
    phases: Phases,
) -> gs.Graph:
    """Return the model with weights of few bits on scales chosen by outputs, and say how good it is.

    ``reference`` is the float model as it was quantized. Prints a line on the scales, and a warning on stderr
    if the outputs are below :data:`LEAST`.
    """
    if fits_scales(scheme):
        found = _fit(graph, reference, scheme, data, job, phases)
        if found.layers:
            print(_scales_line(found))
        graph = found.graph
        if found.samples:
            _warn(found.after, found.samples, job.config)
            return graph
    samples = dict(islice(data.feeds(reference), _FEW))
    with phases("comparing"), failing(samples, reference, job.run, _MADE):
        error = float_error(reference, graph, list(samples.values()), job.run)
    if error is not None:
        _warn(error, len(samples), job.config)
    return graph


def fits_scales(scheme: Scheme) -> bool:
    """Return whether weights of a scheme have scales chosen by outputs."""
    formats = [scheme.format(name) for name in _weight_formats(scheme)]
    return scheme.weight_method == AUTO and has_few_bits(formats)


def _weight_formats(scheme: Scheme) -> list[str]:
    rules = [rule.weight for rule in scheme.layers.values()]
    return [scheme.weight, *(name for name in (*rules, *scheme.tensors.values()) if name)]


def _fit(
    graph: gs.Graph,
    reference: gs.Graph,
    scheme: Scheme,
    data: CalibrationData,
    job: QuantizeJob,
    phases: Phases,
) -> FittedScales:
    samples = list(data.feeds(reference))
    count = min(len(samples), MOST_SAMPLES)
    samples = [samples[i * len(samples) // count] for i in range(count)]
    options = options_for(job.run, job.memory_limit)
    feeds = [feed for _, feed in samples]
    with phases("comparing", "layer") as bar, failing(dict(samples), reference, job.run, _MADE):
        return fit_scales(reference, graph, feeds, options, formats=scheme.named_formats, progress=bar.show)


def _scales_line(found: FittedScales) -> str:
    change = " -> ".join(_decibels(error) for error in (found.before, found.after))
    kept = "" if found.fitted else "; too little gain: not changed"
    samples = "1 held-out sample" if found.samples == 1 else f"{found.samples} held-out samples"
    return (
        f"Scales by output error: {found.fitted} of {found.layers} layers, "
        f"outputs {change} dB on {samples}{kept}"
    )


def _decibels(error: float) -> str:
    if not error:
        return "inf"
    return f"{-10 * math.log10(error):.1f}" if math.isfinite(error) else "-inf"


def _warn(error: float, samples: int, config: str) -> None:
    """Print a warning for a relative error of outputs that leaves little of them."""
    if error <= 10 ** (-LEAST / 10):
        return
    name = f"{config}: " if config in PRESETS else ""
    tuned = f"{config}_ADAQUANT"
    how = f"tools.finetune or --config {tuned} tunes" if tuned in PRESETS else "tools.finetune tunes"
    wider = f", --config {_WIDER[config]} has activations of 16 bits" if config in _WIDER else ""
    where = "1 sample" if samples == 1 else f"{samples} samples"
    outputs = f"{name}outputs at {_decibels(error)} dB on {where}"
    print(f"Warning: {outputs}; {how} the weights{wider}", file=sys.stderr)

"""What ``tools.quantize`` does by the model's outputs: scales of few bits, and a word if little is left."""

from __future__ import annotations

from itertools import islice

import onnx_graphsurgeon as gs

from tools.cli.progress import Phases
from tools.cli.said import say, warn
from tools.jobs.quantize_options import QuantizeJob
from tools.summaries import running
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.finetune.fit_scales import MOST_SAMPLES, FittedScales, fit_scales, has_few_bits, options_for
from transforms.finetune.float_error import float_error
from transforms.pipelines.first_run import decibels
from transforms.run.failing_samples import failing
from transforms.run.feeds import spread
from transforms.scheme import Scheme
from transforms.scheme.scheme import AUTO

_MADE = "the quantized model"
_FEW = 4  # samples that outputs are measured on


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
    if the outputs are below :data:`tools.summaries.running.LEAST`.
    """
    if fits_scales(scheme):
        found = _fit(graph, reference, scheme, data, job, phases)
        if found.layers:
            say(_scales_line(found))
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
    samples = spread(list(data.feeds(reference)), MOST_SAMPLES)
    options = options_for(job.run, job.memory_limit)
    feeds = [feed for _, feed in samples]
    with phases("comparing", "layer") as bar, failing(dict(samples), reference, job.run, _MADE):
        return fit_scales(reference, graph, feeds, options, formats=scheme.named_formats, progress=bar.show)


def _scales_line(found: FittedScales) -> str:
    change = " -> ".join(decibels(error) for error in (found.before, found.after))
    kept = "" if found.fitted else "; too little gain: not changed"
    samples = "1 held-out sample" if found.samples == 1 else f"{found.samples} held-out samples"
    return (
        f"Scales by output error: {found.fitted} of {found.layers} layers, "
        f"outputs {change} dB on {samples}{kept}"
    )


def _warn(error: float, samples: int, config: str) -> None:
    where = "1 sample" if samples == 1 else f"{samples} samples"
    for line in running.poor(error, where, config):
        warn(line)

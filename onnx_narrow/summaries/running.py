"""Where a model runs and the findings of its first run, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx_graphsurgeon as gs

from onnx_narrow.summaries.operator_library import needed_library
from ops.formats import FORMATS
from ops.metrics import in_decibels
from transforms.deploy.rounded_inputs import OPTION, rounded_inputs
from transforms.deploy.saturating_products import saturating_products
from transforms.files.spelling import as_option, spelled
from transforms.functions.attach_functions import has_all_functions
from transforms.graph.some_names import counted, some_names
from transforms.judge.constants import DIVERGED
from transforms.judge.decisions import Checked
from transforms.pipelines.first_result import FirstRun
from transforms.plan.quant_spec import ACTIVATION, WEIGHT
from transforms.runtime.processor import sums_saturate
from transforms.scheme import Scheme
from transforms.scheme.presets import PRESETS, find_preset

LEAST = 10.0
"""Signal against error of the outputs, in dB, below which a result is called poor."""

_ENOUGH_BITS = {ACTIVATION: 16, WEIGHT: 4}
"""Bits with which tensors lose little in a language model: with W2, SmolLM2 diverges by 0.93 nats."""

_OF_WEIGHTS = ("W4", "W8")
"""Presets that quantize weights alone, in which language models may be usable."""

_WIDER = {"A8W8": "A16W8", "U8S8": "U16S8", "W4A8": "A8W8"}
"""Presets whose activations have 16 bits, or whose weights have 8."""


_ROW_BY_ROW = (
    "{config:W4} {matmul_nbits} {accuracy_level:4} has 8 bits for the inputs of products, row by row"
)


def kept_lines(first_run: FirstRun) -> Iterator[str]:
    """Yield each node that was left in float since ONNX Runtime computes it wrongly."""
    return (f"Left in float: {reason}" for reason in first_run.kept)


def runs_line(first_run: FirstRun, graph: gs.Graph, *, standard: str = "none", no_kernels: str = "") -> str:
    """Return where a model runs, and which library it needs; ``standard``: the words for none.

    ``no_kernels``: why a model does not run, if that is known beforehand.
    """
    needed = needed_library(graph, functions=has_all_functions(first_run.exported[0])) or standard
    if first_run.why_not is not None and no_kernels:
        return f"Runs on ONNX Runtime CPU: no, {no_kernels}. Library: {needed}"
    answer = f"no ({first_run.why_not})" if first_run.why_not is not None else "yes"
    if first_run.not_run:
        answer = f"opens; not run: {first_run.not_run}"
    elif first_run.once is not None and first_run.why_not is None:
        place = f"one run{' at ' if first_run.once else ''}{first_run.once}"
        answer += f", {place}; other sizes and its time were not tried"
    elif first_run.fixed and first_run.why_not is None:
        answer += f", tried at one size of {some_names(first_run.fixed)} alone"
    return f"Runs on ONNX Runtime CPU: {answer}. Operator library needed: {needed}"


def rounded_line(first_run: FirstRun, graph: gs.Graph) -> Iterator[str]:
    """Yield whether ONNX Runtime may round inputs of products with stored integers, and how to prevent it."""
    if not (rounded := rounded_inputs(graph)):
        return
    words = f"ONNX Runtime may round {counted(len(rounded), 'input')} of products to 8 bits"
    if first_run.rounded and first_run.trial:
        words += _figures(first_run.rounded.error, first_run.trial.error, "here")
    yield f"{words}: session option {OPTION} = 1 prevents it"


def saturated_line(first_run: FirstRun, graph: gs.Graph) -> Iterator[str]:
    """Yield in how many products sums may saturate on this processor, and how to prevent it."""
    if sums_saturate() and (products := saturating_products(graph)):
        words = f"8-bit sums of {counted(len(products), 'product')} may saturate on this processor"
        if first_run.saturated:
            words += _figures(first_run.saturated.error, first_run.saturated.plain_error, "with exact sums")
        yield f"{words}: {spelled('{assignments:saturation=avoid}')} prevents it"


def _figures(error: float | None, other: float | None, where: str) -> str:
    """Return the errors of outputs in two sessions, where both were measured."""
    if error is None or other is None:
        return ""
    return f", outputs at {in_decibels(error)} dB instead of {in_decibels(other)} {where}"


def warnings(first_run: FirstRun, config: str = "", *, judged: bool = False) -> Iterator[str]:
    """Yield warnings about a model that is written nevertheless.

    ``judged``: its outputs were compared on more samples before. Random numbers, and one token, show that it
    runs, and little of how good it is.
    """
    yield from (f"Warning: {reason}" for reason in first_run.wrong)
    error = first_run.as_opened.error if first_run.as_opened else None
    is_open = not judged and first_run.has_sample and first_run.once is None
    if is_open and error is not None and is_poor(error):
        yield poor(figure_of(error), first_run.sample, config, tuning_ways(config))


def preset_of(config: str, scheme: Scheme) -> str:
    """Return the name of a preset whose formats are in use, untuned; empty for any other scheme."""
    keys = find_preset(config) or {}
    is_plain = keys.get("activation") == scheme.activation and scheme.finetune is None
    return config if is_plain else ""


def useless(
    outputs: Checked, config: str, *, weight: str = "", search: str = "", ways: Sequence[str] = ()
) -> str:
    """Return why a language model is not written whose probabilities are far from the float model's.

    ``weight``: their format, if the scheme quantizes nothing but weights; ``search``: what was tried, in
    words; ``ways``: what helps beside it.
    """
    name = f"{config}: " if find_preset(config) else ""
    ways = [*ways]
    ways += [f"{as_option('config', _WIDER[config])} has {_wider(config)}"] if config in _WIDER else []
    if weight:
        finer = [preset for preset in _OF_WEIGHTS if _bits(str(PRESETS[preset]["weight"])) > _bits(weight)]
        ways += [f"{as_option('config', ' or '.join(finer))} has more bits"] if finer else []
    else:
        ways += [f"{as_option('config', 'W8')} leaves activations in float", spelled(_ROW_BY_ROW)]
    ways += [spelled("{fast} writes the model without a comparison")]
    tried = f" ({search})" if search else ""
    limit = f"above the limit of {DIVERGED} for a usable model"
    return f"{name}{outputs.figure}, {limit}{tried}. Instead: {'; '.join(ways)}"


def unmeasured(tensors: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a warning for a language model whose outputs were not compared, by formats and roles of tensors.

    Weights alone lose little with 4 bits and more; activations of few bits may lose everything.
    """
    few = [f"{role}s in {name}" for name, role in tensors if _bits(name) < _ENOUGH_BITS.get(role, 0)]
    if few:
        names, way = ", ".join(dict.fromkeys(few)), as_option("data", "DIR")
        yield (
            f"Warning: the loss of {names} in a language model was not measured: "
            f"{way} measures the KL divergence, and refuses more than {DIVERGED} nats a token"
        )


def _wider(config: str) -> str:
    """Return which part of the wider preset of a preset has more bits, in words."""
    narrow, wider = PRESETS[config], PRESETS[_WIDER[config]]
    return "weights of 8 bits" if narrow["activation"] == wider["activation"] else "activations of 16 bits"


def _bits(name: str) -> float:
    return FORMATS[name].bits if name in FORMATS else 0.0


def is_poor(*errors: float) -> bool:
    """Return whether any of these squared errors of outputs, relative to their power, is large."""
    return not all(error <= 10 ** (-LEAST / 10) for error in errors)  # NaN leaves nothing


def tuning_ways(config: str, *, fitted: bool = False) -> list[str]:
    """Return ways to tune the weights of a preset; ``fitted``: outputs have rounded them already."""
    tuning = f"{config}_ADAQUANT"
    tools = [] if fitted else ["tools.finetune"]
    tools += [as_option("config", tuning)] if find_preset(tuning) else []
    return [f"{' or '.join(tools)} tunes the weights"] if tools else []


def poor(figure: str, where: str, config: str = "", ways: Iterable[str] = ()) -> str:
    """Return a warning for a poor figure of the outputs, with the ``ways`` to improve it."""
    name = f"{config}: " if find_preset(config) else ""
    ways = [*ways]
    ways += [f"{as_option('config', _WIDER[config])} has {_wider(config)}"] if config in _WIDER else []
    return "; ".join(filter(None, (f"Warning: {name}{figure} on {where}", ", ".join(ways))))


def figure_of(error: float, *, of_tokens: bool = False, what: str = "outputs") -> str:
    """Return a squared error of outputs by their power in words; ``of_tokens``: in nats for each token."""
    return f"KL divergence of {error:.3g} nats a token" if of_tokens else f"{what} at {in_decibels(error)} dB"

"""A check that each keyword has an effect with the scheme."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial

import ops
from onnx_narrow.api.schemes import SchemeWish
from onnx_narrow.api.usage import named
from onnx_narrow.options.option import Keywords, Need
from transforms.files.spelling import UsageError, as_option, spelled
from transforms.plan.quantization_plan import WEIGHTED
from transforms.scheme import Scheme
from transforms.scheme.fitted_weights import FEW_BITS, rounds_8_bits
from transforms.scheme.mixing_rule import BUDGETS, MIXING
from transforms.scheme.scheme import AUTO, FOUND
from transforms.scheme.targets import ON_CPU

_STANDARD_BITS = 16
"""Bits of the widest integers that ONNX's own operators quantize to."""


def check_effect(
    scheme: Scheme, wish: SchemeWish, keywords: Keywords, needs: Mapping[str, Need] | None = None
) -> None:
    """Raise ValueError for a keyword, or a key of ``assignments``, whose need is not met.

    ``needs``: what keywords of a single function require of the scheme.
    """
    of_formats = {**_OF_FORMATS, **(needs or {})}
    paths = wish.assigned if wish.assignments else ()
    assigned = {name: path for path in paths for name in (path.partition(".")[0], path)}

    def _said(name: str) -> str:
        return named(name, keywords[name]) if name in keywords else as_option("assignments", assigned[name])

    for name in {**assigned, **keywords}:
        if name in of_formats and not of_formats[name].is_met(scheme):
            formats = ", ".join(fmt.name for fmt in scheme.named_formats) or "float32"
            raise ValueError(f"{_said(name)} requires {of_formats[name]}; the formats here are {formats}")
        if name in _OF_WORK and not _OF_WORK[name].is_met(keywords):
            raise ValueError(f"{_said(name)} requires {_OF_WORK[name]}")


def refuse_beside(scheme: Scheme, keywords: Keywords) -> None:
    """Raise UsageError or ValueError for keywords and tables of the scheme that do not go together."""
    if "fast" in keywords and "data" not in keywords and not scheme.is_dynamic:
        raise UsageError(spelled("{fast} requires {data}, or products that round activations at run time"))
    tables = [key for key in ("finetune", MIXING) if getattr(scheme, key) is not None]
    goals = [spelled(f"{{{name}}}") for name in ("min_sqnr", "top1") if name in keywords]
    if goals and tables:
        raise ValueError(f"{goals[0]} cannot be combined with the table [{tables[0]}] of the scheme")
    if scheme.finetune and "data" not in keywords:
        words = f"fine-tuning ({scheme.finetune.algorithm}) needs samples"
        raise ValueError(f"{words}: {spelled('give {data:DIR}')}")


def _has_integers(scheme: Scheme, most_bits: float = math.inf) -> bool:
    return any(fmt.is_integer and fmt.bits <= most_bits for fmt in scheme.named_formats)


def _measures(scheme: Scheme) -> bool:
    return any(fmt.is_integer for fmt in _of_activations(scheme))


def _of_activations(scheme: Scheme) -> Iterator[ops.Format]:
    """Yield the formats that computed tensors have or may get."""
    mixing = scheme.auto_mixed_precision
    rules = (*scheme.layers.values(), *(mixing.choices(scheme.activation, scheme.weight) if mixing else ()))
    names = [scheme.activation, *scheme.tensors.values(), *(rule.activation for rule in rules)]
    yield from (fmt for name in names if name and (fmt := scheme.format(name)) is not None)


def _has_own_operators(scheme: Scheme) -> bool:
    biases = [scheme.bias, *(rule.bias for rule in scheme.layers.values())]
    other_formats = [
        scheme.other_format,
        *(scheme.format(name) for name in biases if name not in (None, AUTO)),
    ]
    formats = [*scheme.named_formats, *(fmt for fmt in other_formats if fmt is not None)]
    as_cast = scheme.bfloat16_as == "cast"
    return any(
        fmt.bits > _STANDARD_BITS if fmt.is_integer else not (as_cast and fmt.name == "bfloat16")
        for fmt in formats
    )


def _keeps_float(scheme: Scheme) -> bool:
    """Return whether outputs can show that a computed tensor has to stay float."""
    activation = scheme.format(scheme.activation)
    return scheme.is_open if _measures(scheme) else activation is not None


def _may_keep_float(scheme: Scheme) -> bool:
    by_time = scheme.target == ON_CPU and not scheme.finetune
    return by_time or (_keeps_float(scheme) and not scheme.target)


_ACTIVATIONS = Need("integer activations", _measures)
_INTEGERS = Need("integers", _has_integers)
_DECIDED = Need(
    "activations that are not float32, of integers a key that is 'auto', no target but ort-cpu, and no mixed "
    "precision",
    lambda scheme: _may_keep_float(scheme) and not scheme.auto_mixed_precision,
)
CALIBRATION = Need(
    _ACTIVATIONS.words,
    lambda scheme: _measures(scheme) or (_has_integers(scheme) and scheme.weight_method == WEIGHTED),
)
"""The requirement of options of a calibration."""

UNMIXED = Need("a scheme without mixed precision", lambda scheme: scheme.auto_mixed_precision is None)
BLOCKS = Need(
    "integers in blocks ({assignments:block_size=32})",
    lambda scheme: bool(scheme.block_size) or scheme.weight == FOUND,
)

_OF_FORMATS: Mapping[str, Need] = {
    **dict.fromkeys(("calibrate_method", "activation_symmetric", "calibrate_tensors"), _ACTIVATIONS),
    **dict.fromkeys(("per_channel", "weight_method", "block_size"), _INTEGERS),
    **dict.fromkeys(("calibration_cache", "correct_biases"), CALIBRATION),
    "moving_average": _ACTIVATIONS,
    "memory_limit": Need(
        f"{CALIBRATION.words} or tuning", lambda scheme: CALIBRATION.is_met(scheme) or scheme.finetune
    ),
    "percentile": Need(
        f"{_ACTIVATIONS.words} and calibrate_method 'Percentile'",
        lambda scheme: _measures(scheme) and scheme.calibrate_method == "Percentile",
    ),
    "averaging_constant": Need(
        f"{_ACTIVATIONS.words} and moving_average = true",
        lambda scheme: _measures(scheme) and scheme.moving_average,
    ),
    "keep_float": _DECIDED,
    "fit_weights": Need(
        f"weights of fewer than {FEW_BITS} bits, or 8 beside activations of more, and in mixed precision a "
        "budget without a target",
        lambda scheme: (
            (scheme.has_few_bits or rounds_8_bits(scheme))
            and (scheme.auto_mixed_precision is None or scheme.auto_mixed_precision.is_of_size)
        ),
    ),
    "qdq_domain": Need(
        f"integers of up to {_STANDARD_BITS} bits", partial(_has_integers, most_bits=_STANDARD_BITS)
    ),
    "domain": Need("formats for which ONNX has no operators", _has_own_operators),
}
"""What keys of a scheme, and keywords, require of the formats in the scheme."""

_SAMPLES = Need("{data}", lambda keywords: "data" in keywords or "random_data" in keywords)
_MODEL = Need("{output}", lambda keywords: "analyze_only" not in keywords)
_OF_WORK: Mapping[str, Need] = {
    f"{MIXING}.output_index": _SAMPLES,
    **{f"{MIXING}.{key}": _MODEL for key in BUDGETS},
    "finetune": _MODEL,
}
"""What keys of ``assignments`` require of the keywords."""

"""Refusing options that do nothing with the formats and methods of a scheme."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import ops
from transforms.mixing_rule import make_mixing_rule
from transforms.scheme import AUTO, Scheme
from transforms.weight_importance import WEIGHTED

_STANDARD_BITS = 16
"""Of the widest integers that ONNX's own operators quantize to."""


def check_effect(scheme: Scheme, options: argparse.Namespace) -> None:
    """Raise ValueError for an option, or a key of ``--set``, that needs what a scheme does not have."""
    given = {f"set {key}": f"--set {key}" for key in map(_key, options.set)} | options.given
    for names, needed, has_effect in _needs(scheme):
        for name in names:
            words = given.get(name) or given.get(f"set {name}")
            if words and not has_effect:
                formats = ", ".join(row.name for row in scheme.named_formats) or "float32"
                raise ValueError(f"{words} goes with {needed}, the formats here are {formats}")


def _key(assignment: str) -> str:
    return assignment.partition("=")[0].partition(".")[0].strip()


def _needs(scheme: Scheme) -> Iterator[tuple[tuple[str, ...], str, bool]]:
    """Yield options, what they go with in words, and whether a scheme has that."""
    measures = any(row.is_integer for row in _of_activations(scheme))
    has_integers = any(row.is_integer for row in scheme.named_formats)
    weighs = has_integers and scheme.weight_method == WEIGHTED
    of_method = scheme.calibrate_method == "Percentile"
    yield ("calibrate_method", "activation_symmetric", "moving_average"), "integer activations", measures
    yield ("calibration_cache",), "integer activations", measures or weighs
    yield ("percentile",), "integer activations and calibrate_method 'Percentile'", measures and of_method
    averages = measures and scheme.moving_average
    yield ("averaging_constant",), "integer activations and moving_average = true", averages
    yield ("per_channel", "weight_method", "qdq_domain"), "integers", has_integers
    yield ("domain",), "formats for which ONNX has no operators", _has_own_operators(scheme)


def _of_activations(scheme: Scheme) -> Iterator[ops.Format]:
    """Yield the formats that computed tensors have or may get."""
    mixing = make_mixing_rule(scheme.auto_mixed_precision)
    rules = (*scheme.layers.values(), *(mixing.choices(scheme.activation, scheme.weight) if mixing else ()))
    names = [scheme.activation, *scheme.tensors.values(), *(rule.activation for rule in rules)]
    yield from (row for name in names if name and (row := scheme.format(name)) is not None)


def _has_own_operators(scheme: Scheme) -> bool:
    biases = [scheme.bias, *(rule.bias for rule in scheme.layers.values())]
    others = [scheme.other_format, *(scheme.format(name) for name in biases if name not in (None, AUTO))]
    rows = [*scheme.named_formats, *(row for row in others if row is not None)]
    as_cast = scheme.bfloat16_as == "cast"
    return any(
        row.bits > _STANDARD_BITS if row.is_integer else not (as_cast and row.name == "bfloat16")
        for row in rows
    )

"""Refusing options that do nothing with the formats and methods of a scheme."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import ops
from transforms.files.read_toml import parse_toml
from transforms.plan.weight_importance import WEIGHTED
from transforms.scheme.scheme import AUTO, Scheme
from transforms.scheme.scheme_table import SchemeTable

_STANDARD_BITS = 16
"""Of the widest integers that ONNX's own operators quantize to."""


_MIXING = "auto_mixed_precision"
_OF_SAMPLES = ("sensitivity", "metric", "output_index", "data_size")
_OF_MOVING = ("strategy", "bits_target", "bytes_target")

Need = tuple[tuple[str, ...], str, bool]
"""Options and keys, what they go with in words, and whether that is there."""


def check_effect(scheme: Scheme, options: argparse.Namespace, flag: str) -> None:
    """Raise ValueError for an option, or a key of ``--set``, that needs what is not there.

    That are formats and methods of the scheme, samples (``flag`` is the option that names their folder), or a
    model that is written.
    """
    paths = [assignment.partition("=")[0].strip() for assignment in options.set]
    given = {f"set {name}": f"--set {path}" for path in paths for name in (path, path.partition(".")[0])}
    given |= options.given
    for names, needed, is_there in (*_of_formats(scheme), *_of_work(options, flag)):
        words = next((given[word] for name in names for word in (name, f"set {name}") if word in given), None)
        if words and not is_there:
            raise ValueError(f"{words} goes with {needed}")


def _of_work(options: argparse.Namespace, flag: str) -> Iterator[Need]:
    has_data = flag in options.given.values() or "random_data" in options.given
    yield tuple(f"{_MIXING}.{key}" for key in _OF_SAMPLES), flag, has_data
    is_written = "output" in options.given
    yield ("finetune", *(f"{_MIXING}.{key}" for key in _OF_MOVING)), "--output", is_written


def _of_formats(scheme: Scheme) -> Iterator[Need]:
    here = f"; the formats here are {', '.join(row.name for row in scheme.named_formats) or 'float32'}"
    activations = "integer activations"
    measures = any(row.is_integer for row in _of_activations(scheme))
    has_integers = any(row.is_integer for row in scheme.named_formats)
    weighs = has_integers and scheme.weight_method == WEIGHTED
    yield ("calibrate_method", "activation_symmetric", "moving_average"), activations + here, measures
    yield ("calibration_cache",), activations + here, measures or weighs
    of_percentile = measures and scheme.calibrate_method == "Percentile"
    yield ("percentile",), f"{activations} and calibrate_method 'Percentile'{here}", of_percentile
    averages = measures and scheme.moving_average
    yield ("averaging_constant",), f"{activations} and moving_average = true{here}", averages
    yield ("per_channel", "weight_method"), f"integers{here}", has_integers
    standard = any(row.is_integer and row.bits <= _STANDARD_BITS for row in scheme.named_formats)
    yield ("qdq_domain",), f"integers of up to {_STANDARD_BITS} bits{here}", standard
    has_own = _has_own_operators(scheme)
    yield ("domain",), f"formats for which ONNX has no operators{here}", has_own


def _of_activations(scheme: Scheme) -> Iterator[ops.Format]:
    """Yield the formats that computed tensors have or may get."""
    mixing = scheme.auto_mixed_precision
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


def parse_assignment(assignment: str, scheme: Scheme) -> dict[str, Any]:
    """Return the one key and value of ``KEY=VALUE``.

    A value that is no TOML is taken as a string, and ``TABLE.KEY=VALUE`` adds to the table of the scheme.
    """
    key, equals, value = assignment.partition("=")
    if not equals:
        raise ValueError(f"--set '{assignment}' is not KEY=VALUE")
    try:
        values = parse_toml(f"{key} = {value}")
    except ValueError:
        *tables, name = key.strip().split(".")
        values = {name: value.strip()}
        for table in reversed(tables):
            values = {table: values}
    for name, given in values.items():
        before = getattr(scheme, name, None)
        if isinstance(before, SchemeTable):
            before = before.said
        if isinstance(before, dict) and isinstance(given, dict):
            values[name] = before | given
    return values

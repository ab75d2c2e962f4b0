"""The scheme of a command line, and a check that each of its options has an effect on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ops
from tools.cli.job_options import SchemeJob, by_name
from tools.cli.needs import DATA, Need
from tools.cli.said import warn
from transforms.files.named_file import parse_toml
from transforms.plan.quantization_plan import WEIGHTED
from transforms.scheme import Scheme, read_scheme
from transforms.scheme.apply_target import adapted, scheme_of
from transforms.scheme.mixing_rule import BUDGETS, MIXING, TARGETS
from transforms.scheme.scheme import AUTO, POWER_OF_TWO
from transforms.scheme.scheme_values import FEW_BITS, SchemeTable
from transforms.scheme.targets import ON_CPU, target

_STANDARD_BITS = 16
"""Of the widest integers that ONNX's own operators quantize to."""

_TARGETS = frozenset(TARGETS)
_ALTERNATIVES = (
    *((_TARGETS - {key}, {key}) for key in sorted(_TARGETS)),
    ({"activation_target", "weight_target"}, {"target"}),
    ({"target"}, {"activation_target", "weight_target"}),
    *(({*BUDGETS} - {key}, {key}) for key in BUDGETS),
)
"""Keys of the table that an option for another key takes the place of, too: only one of them may be given."""


FORM_OPTIONS = ("matmul_nbits", "accuracy_level", "embeddings", "kv_cache", "storage")
"""Options that are no keys of a scheme: what is stored in which operators."""


def recorded_options(job: SchemeJob) -> dict[str, object]:
    """Return what is recorded of a command line, from which reports make one like it.

    That is a preset, or the name of a file without its folder; keys of the scheme that were set; and options
    that are no such keys.
    """
    form: dict[str, object] = {name: getattr(job, name) for name in FORM_OPTIONS if name in job.given}
    if keys := [one for one in job.assignments if one.partition(".")[0] != MIXING]:
        form["set"] = keys
    return {"config": Path(job.config).name, **form}


def quantization_scheme(job: SchemeJob) -> Scheme:
    """Return the scheme of ``--config`` with what the command line changes; ValueError naming the key."""
    scheme = _read(job)
    assigned = _assigned(job, scheme)
    single = {key: value for key, value in job.changes.items() if type(value) is not list}
    _refuse_twice(assigned, single, job, "")
    scheme = scheme.with_(**assigned)
    lists = {key: (*getattr(scheme, key), *more) for key, more in job.changes.items() if type(more) is list}
    return _fitted(scheme.with_(**{**job.changes, **lists}), job.deployment)


def mixing_scheme(job: SchemeJob) -> Scheme:
    """Return the same with changes to the table of automatic mixed precision, which there must be."""
    scheme = _read(job)
    assigned, changes = _assigned(job, scheme, apart=(MIXING,)), dict(job.changes)
    tables = assigned.pop(MIXING, {})
    formats = [name for name in changes.get("target", ()) if name != job.deployment]
    changes = {key: value for key, value in {**changes, "target": formats}.items() if value != []}
    _refuse_twice(tables, changes, job, f"{MIXING}.")
    replaced = set().union(*(old for old, new in _ALTERNATIVES if new & changes.keys()))
    before = scheme.auto_mixed_precision.said if scheme.auto_mixed_precision else {}
    kept = {key: value for key, value in before.items() if key not in replaced}
    table = {**kept, **tables, **changes}
    if not table:
        raise ValueError(f"'{job.config}' has no table [{MIXING}]: give --target FORMAT")
    return _fitted(scheme.with_(**assigned, **{MIXING: table}), job.deployment)


def _refuse_twice(
    assigned: Mapping[str, Any], changes: Mapping[str, Any], job: SchemeJob, table: str
) -> None:
    """Raise ValueError for a key that has a value by ``--set`` and another by its own option."""
    for key in sorted(assigned.keys() & changes.keys()):
        raise ValueError(f"{job.given[key]} and --set {table}{key} set the same key: give one of them")


def _fitted(scheme: Scheme, deployment: str) -> Scheme:
    """Return the scheme held to the rules of a target, and say on stderr what that changed."""
    if not deployment:
        return scheme
    fitted, lines = adapted(scheme, target(deployment))
    for line in lines:
        warn(line)
    return fitted


def _assigned(job: SchemeJob, scheme: Scheme, *, apart: Sequence[str] = ()) -> dict[str, Any]:
    """Return the values that ``--set`` gives, all together: a key may be legal only with a later one.

    ``TABLE.KEY=VALUE`` adds to the table of the scheme; to nothing, if the table stands ``apart``.
    """
    values: dict[str, Any] = {}
    for assignment in job.assignments:
        for name, given in _parse_assignment(assignment).items():
            before = values.get(name, None if name in apart else getattr(scheme, name, None))
            values[name] = _added(before, given)
    return values


def _parse_assignment(assignment: str) -> dict[str, Any]:
    """Return the one key and value of ``KEY=VALUE``; a value that is not TOML is taken as a string."""
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
    return values


def _added(before: Any, given: Any) -> Any:
    """Return a table with what is given for some of its keys, and of the tables in it; else what is given."""
    if isinstance(before, SchemeTable):
        before = before.said
    if not (isinstance(before, Mapping) and isinstance(given, dict)):
        return given
    return {**before, **{key: _added(before.get(key), value) for key, value in given.items()}}


def check_effect(scheme: Scheme, job: SchemeJob, needs: Mapping[str, Need] | None = None) -> None:
    """Raise ValueError for an option, or a key of ``--set``, whose need is not met.

    ``needs``: what options of the tool alone go with in the scheme.
    """
    of_formats = {**_OF_FORMATS, **(needs or {})}
    paths = [assignment.partition("=")[0].strip() for assignment in job.assignments]
    given = {name: f"--set {path}" for path in paths for name in (path.partition(".")[0], path)}
    for name, words in {**given, **job.given}.items():
        if name in of_formats and not of_formats[name].is_met(scheme):
            here = ", ".join(fmt.name for fmt in scheme.named_formats) or "float32"
            raise ValueError(f"{words} goes with {of_formats[name].words}; the formats here are {here}")
        if name in _OF_WORK and not _OF_WORK[name].is_met(job):
            raise ValueError(f"{words} goes with {_OF_WORK[name].words}")


def _read(job: SchemeJob) -> Scheme:
    by_target = job.deployment and not job.config
    scheme = scheme_of(target(job.deployment)) if by_target else read_scheme(job.config)
    if job.opset:
        scheme = scheme.with_(opset=job.opset)
    if job.input_shapes:
        scheme = scheme.with_(input_shapes={**scheme.input_shapes, **by_name(job.input_shapes)})
    return scheme


def _has_integers(scheme: Scheme) -> bool:
    return any(fmt.is_integer for fmt in scheme.named_formats)


def _has_standard_integers(scheme: Scheme) -> bool:
    return any(fmt.is_integer and fmt.bits <= _STANDARD_BITS for fmt in scheme.named_formats)


def _measures(scheme: Scheme) -> bool:
    return any(fmt.is_integer for fmt in _of_activations(scheme))


def _of_activations(scheme: Scheme) -> Iterator[ops.Format]:
    """Yield the formats that computed tensors have or may get."""
    mixing = scheme.auto_mixed_precision
    rules = (*scheme.layers.values(), *(mixing.choices(scheme.activation, scheme.weight) if mixing else ()))
    names = [scheme.activation, *scheme.tensors.values(), *(rule.activation for rule in rules)]
    yield from (fmt for name in names if name and (fmt := scheme.format(name)) is not None)


def _is_shiftable(scheme: Scheme) -> bool:
    int8 = scheme.format(scheme.activation)
    if int8 is None or int8.name != "int8" or not scheme.is_symmetric(int8):
        return False
    return not (scheme.scale == POWER_OF_TWO or scheme.keep_weight_nodes or scheme.auto_mixed_precision)


def _has_own_operators(scheme: Scheme) -> bool:
    biases = [scheme.bias, *(rule.bias for rule in scheme.layers.values())]
    others = [scheme.other_format, *(scheme.format(name) for name in biases if name not in (None, AUTO))]
    formats = [*scheme.named_formats, *(fmt for fmt in others if fmt is not None)]
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
"""What options of a calibration go with."""

_SHIFTABLE = "int8 activations without zero points, weights stored as integers and no mixed precision"

UNMIXED = Need("a scheme without mixed precision", lambda scheme: scheme.auto_mixed_precision is None)
BLOCKS = Need("integers in blocks (--set block_size=32)", lambda scheme: bool(scheme.block_size))

_OF_FORMATS: Mapping[str, Need] = {
    "calibrate_method": _ACTIVATIONS,
    "activation_symmetric": _ACTIVATIONS,
    "moving_average": _ACTIVATIONS,
    "calibration_cache": CALIBRATION,
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
    "per_channel": _INTEGERS,
    "weight_method": _INTEGERS,
    "block_size": _INTEGERS,
    "correct_biases": CALIBRATION,
    "calibrate_tensors": _ACTIVATIONS,
    "keep_float": _DECIDED,
    "fit_weights": Need(
        f"weights of fewer than {FEW_BITS} bits, and no mixed precision",
        lambda scheme: scheme.has_few_bits and not scheme.auto_mixed_precision,
    ),
    "full_range": Need(_SHIFTABLE, _is_shiftable),
    "qdq_domain": Need(f"integers of up to {_STANDARD_BITS} bits", _has_standard_integers),
    "domain": Need("formats for which ONNX has no operators", _has_own_operators),
}
"""What keys of a scheme, and options, go with in the scheme."""

_SAMPLES = Need(DATA.words, lambda job: DATA.is_met(job) or "random_data" in job.given)
_MODEL = Need("--output", lambda job: "output" in job.given)
_OF_WORK: Mapping[str, Need] = {
    **{f"{MIXING}.{key}": _SAMPLES for key in ("metric", "output_index", "data_size")},
    **{f"{MIXING}.{key}": _MODEL for key in ("strategy", *BUDGETS)},
    "finetune": _MODEL,
}
"""What keys of ``--set`` go with on the command line."""

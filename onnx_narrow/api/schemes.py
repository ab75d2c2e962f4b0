"""The scheme that keywords ask for, and a check that each of them has an effect on it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import ops
from onnx_narrow.api.usage import DATA, Given, Need, listed, named
from transforms.files.named_file import parse_toml
from transforms.files.spelling import as_option, spelled
from transforms.plan.quantization_plan import WEIGHTED
from transforms.run.events import Events
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
"""Keys of the table that a keyword for another key takes the place of, too: only one of them may be given."""

FORMS = ("matmul_nbits", "accuracy_level", "embeddings", "kv_cache", "storage")
"""Keywords that are no keys of a scheme: in which operators parts are stored."""

Config: TypeAlias = str | os.PathLike[str] | Scheme
"""A preset such as ``"A8W8"``, the path of a scheme in TOML, or a scheme."""

Assignments: TypeAlias = Mapping[str, Any] | Sequence[str] | str
"""Keys of a scheme with their values; or one or several as ``KEY=VALUE`` with a value in TOML."""


@dataclass(frozen=True)
class SchemeWish:
    """What a caller says of the scheme.

    ``config``: a preset, a path or a scheme, None for that of the ``deployment`` target, which is empty for
    none; ``keys``: values of keys that have keywords of their own; ``assignments``: of any others.
    """

    config: Config | None = None
    deployment: str = ""
    keys: Mapping[str, Any] = field(default_factory=dict)
    assignments: Assignments = ()
    opset: int = 0
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What is recorded of it: a preset, the name of a file without its folder, or that it is a scheme."""
        if isinstance(self.config, Scheme):
            return "scheme"
        return "" if self.config is None else Path(self.config).name

    @property
    def assigned(self) -> list[str]:
        """The keys of ``assignments``, those of tables as TABLE.KEY."""
        return [key.replace(" ", "") for key, _ in _pairs(self.assignments)]

    def recorded(self, given: Given) -> dict[str, object]:
        """Return what is recorded of keywords, from which reports make a command like the call.

        That is the name of the scheme; keys of the scheme that were assigned; and keywords that are no such
        keys.
        """
        form: dict[str, object] = {name: given[name] for name in FORMS if name in given}
        if keys := [text for text in _texts(self.assignments) if text.partition(".")[0] != MIXING]:
            form["set"] = keys
        return {"config": self.name, **form}

    @property
    def folder(self) -> Path | None:
        """The folder of the file of the scheme, None without one."""
        is_file = isinstance(self.config, str | os.PathLike) and Path(self.config).is_file()
        return Path(self.config).resolve().parent if is_file else None  # type: ignore[arg-type]

    def read(self) -> Scheme:
        """Return the scheme without the keys that keywords change."""
        if isinstance(self.config, Scheme):
            scheme = self.config
        elif self.config is None:
            scheme = scheme_of(target(self.deployment))
        else:
            scheme = read_scheme(self.config)
        if self.opset:
            scheme = scheme.with_(opset=self.opset)
        if self.input_shapes:
            scheme = scheme.with_(input_shapes={**scheme.input_shapes, **self.input_shapes})
        return scheme


def quantization_scheme(wish: SchemeWish, events: Events) -> Scheme:
    """Return the scheme with what keywords change; ValueError naming the key."""
    scheme = wish.read()
    assigned = _assigned(wish, scheme)
    single = {key: value for key, value in wish.keys.items() if not isinstance(value, list | tuple)}
    _refuse_twice(assigned, single, "")
    scheme = scheme.with_(**assigned)
    lists = {key: (*getattr(scheme, key), *more) for key, more in wish.keys.items() if key not in single}
    return _fitted(scheme.with_(**{**wish.keys, **lists}), wish.deployment, events)


def mixing_scheme(wish: SchemeWish, events: Events) -> Scheme:
    """Return the same with changes to the table of automatic mixed precision, which there must be."""
    scheme = wish.read()
    assigned = _assigned(wish, scheme, apart=(MIXING,))
    tables = assigned.pop(MIXING, {})
    changes = {key: value for key, value in wish.keys.items() if value not in ([], ())}
    _refuse_twice(tables, changes, f"{MIXING}.")
    replaced = set().union(*(old for old, new in _ALTERNATIVES if new & changes.keys()))
    before = scheme.auto_mixed_precision.said if scheme.auto_mixed_precision else {}
    kept = {key: value for key, value in before.items() if key not in replaced}
    table = {**kept, **tables, **changes}
    if not table:
        raise ValueError(f"'{wish.name}' has no table [{MIXING}]: give {spelled('{target:FORMAT}')}")
    return _fitted(scheme.with_(**assigned, **{MIXING: table}), wish.deployment, events)


def _refuse_twice(assigned: Mapping[str, Any], changes: Mapping[str, Any], table: str) -> None:
    """Raise ValueError for a key that has a value by ``assignments`` and another by its own keyword."""
    for key in sorted(assigned.keys() & changes.keys()):
        pair = f"{named(key, changes[key])} and {as_option('assignments', table + key)}"
        raise ValueError(f"{pair} set the same key: give one of them")


def _fitted(scheme: Scheme, deployment: str, events: Events) -> Scheme:
    """Return the scheme held to the rules of a target, and warn of what that changed."""
    if not deployment:
        return scheme
    fitted, lines = adapted(scheme, target(deployment))
    for line in lines:
        events.warn(line)
    return fitted


def _assigned(wish: SchemeWish, scheme: Scheme, *, apart: Sequence[str] = ()) -> dict[str, Any]:
    """Return the values of ``assignments``, all together: a key may be legal only with a later one.

    ``TABLE.KEY`` adds to the table of the scheme; to nothing, if the table stands ``apart``.
    """
    values: dict[str, Any] = {}
    for key, value in _pairs(wish.assignments):
        for name, given in _nested(key, value).items():
            before = values.get(name, None if name in apart else getattr(scheme, name, None))
            values[name] = _added(before, given)
    return values


def _pairs(assignments: Assignments) -> Iterator[tuple[str, Any]]:
    if isinstance(assignments, Mapping):
        yield from assignments.items()
        return
    for assignment in listed(assignments):
        key, equals, value = assignment.partition("=")
        if not equals:
            raise ValueError(f"{spelled('{assignments}')} '{assignment}' is not KEY=VALUE")
        yield key.strip(), _value(value)


def _texts(assignments: Assignments) -> list[str]:
    """Return each assignment as ``KEY=VALUE``."""
    if isinstance(assignments, Mapping):
        return [f"{key}={_toml(value)}" for key, value in assignments.items()]
    return listed(assignments)


def _toml(value: Any) -> str:
    """Return a value of a key as TOML; a table as an inline one."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(str(key))} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(os.fspath(value) if isinstance(value, os.PathLike) else value, ensure_ascii=False)


def _value(text: str) -> Any:
    """Return a value in TOML; any other text is a string."""
    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text.strip()


def _nested(key: str, value: Any) -> dict[str, Any]:
    """Return the table that ``TABLE.KEY`` and a value stand for; a quoted part may have dots in it."""
    try:
        empty = parse_toml(f"{key} = 0")
    except ValueError:
        *tables, name = key.split(".")
        values = {name: value}
        for table in reversed(tables):
            values = {table: values}
        return values
    return _filled(empty, value)


def _filled(table: dict[str, Any], value: Any) -> dict[str, Any]:
    ((name, inner),) = table.items()
    return {name: _filled(inner, value) if isinstance(inner, dict) else value}


def _added(before: Any, given: Any) -> Any:
    """Return a table with what is given for some of its keys, and of the tables in it; else what is given."""
    if isinstance(before, SchemeTable):
        before = before.said
    if not (isinstance(before, Mapping) and isinstance(given, dict)):
        return given
    return {**before, **{key: _added(before.get(key), value) for key, value in given.items()}}


def check_effect(
    scheme: Scheme, wish: SchemeWish, given: Given, needs: Mapping[str, Need] | None = None
) -> None:
    """Raise ValueError for a keyword, or a key of ``assignments``, whose need is not met.

    ``needs``: what keywords of one function alone go with in the scheme.
    """
    of_formats = {**_OF_FORMATS, **(needs or {})}
    paths = [key.strip() for key, _ in _pairs(wish.assignments)]
    assigned = {
        name: as_option("assignments", path) for path in paths for name in (path.partition(".")[0], path)
    }
    for name, words in {**assigned, **{name: named(name, value) for name, value in given.items()}}.items():
        if name in of_formats and not of_formats[name].is_met(scheme):
            here = ", ".join(fmt.name for fmt in scheme.named_formats) or "float32"
            raise ValueError(f"{words} goes with {of_formats[name]}; the formats here are {here}")
        if name in _OF_WORK and not _OF_WORK[name].is_met(given):
            raise ValueError(f"{words} goes with {_OF_WORK[name]}")


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
BLOCKS = Need("integers in blocks ({assignments:block_size=32})", lambda scheme: bool(scheme.block_size))

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
"""What keys of a scheme, and keywords, go with in the scheme."""

_SAMPLES = Need(DATA.words, lambda given: DATA.is_met(given) or "random_data" in given)
_MODEL = Need("{output}", lambda given: "analyze_only" not in given)
_OF_WORK: Mapping[str, Need] = {
    **{f"{MIXING}.{key}": _SAMPLES for key in ("metric", "output_index", "data_size")},
    **{f"{MIXING}.{key}": _MODEL for key in ("strategy", *BUDGETS)},
    "finetune": _MODEL,
}
"""What keys of ``assignments`` go with among keywords."""

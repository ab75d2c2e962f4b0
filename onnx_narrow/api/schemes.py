"""The scheme that keywords ask for, and a check that each of them has an effect on it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from onnx_narrow.api.usage import named
from onnx_narrow.options.kinds import listed
from onnx_narrow.options.option import Keywords
from transforms.files.named_file import parse_toml
from transforms.files.spelling import as_option, spelled
from transforms.pipelines.options import FORMS
from transforms.run.events import Events
from transforms.scheme import Scheme, read_scheme
from transforms.scheme.apply_target import adapted, scheme_of
from transforms.scheme.mixing_rule import BUDGETS, MIXING, TARGETS
from transforms.scheme.scheme_values import SchemeTable
from transforms.scheme.sources import scheme_from_keys
from transforms.scheme.targets import target

FORMAT_KEYS = frozenset({"activation", "weight"})
"""Keys that a scheme without a preset has to give."""

_TARGETS = frozenset(TARGETS)
_ALTERNATIVES = (
    *((_TARGETS - {key}, {key}) for key in sorted(_TARGETS)),
    ({"activation_target", "weight_target"}, {"target"}),
    ({"target"}, {"activation_target", "weight_target"}),
    *(({*BUDGETS} - {key}, {key}) for key in BUDGETS),
)
"""Pairs: keys of the table that are removed when a keyword gives one of the other keys."""

Config: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | Scheme
"""A preset such as ``"A8W8"``, the path of a scheme in TOML, a scheme, or a mapping of its keys.

A mapping may begin with a preset, as a file may: ``{"preset": "A8W8", "per_channel": False}``.
"""

Assignments: TypeAlias = Mapping[str, Any] | Sequence[str] | str
"""Keys of a scheme with their values; or one or several as ``KEY=VALUE`` with a value in TOML."""


@dataclass(frozen=True)
class SchemeWish:
    """The scheme that a caller asks for.

    ``config``: a preset, a path or a scheme, None for that of the ``deployment`` target, which is empty for
    none, or for the formats in ``assignments``; ``keys``: values of keys that have keywords of their own;
    ``assignments``: of any others.
    """

    config: Config | None = None
    deployment: str = ""
    keys: Mapping[str, Any] = field(default_factory=dict)
    assignments: Assignments = ()
    opset: int = 0
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, keywords: Keywords, config: Config | None, deployment: str, keys: Mapping[str, Any]
    ) -> SchemeWish:
        """Return the wish of the keywords; the other three fields differ between functions."""
        more = {name: keywords[name] for name in ("assignments", "opset", "input_shapes") if name in keywords}
        return cls(config, deployment, keys, **more)

    @property
    def name(self) -> str:
        """Its name in metadata: a preset, the name of a file without its folder, or ``scheme``."""
        if isinstance(self.config, Scheme | Mapping):
            return "scheme"
        return "" if self.config is None else Path(self.config).name

    @property
    def assigned(self) -> list[str]:
        """The keys of ``assignments``, those of tables as TABLE.KEY."""
        return [key.replace(" ", "") for key, _ in _pairs(self.assignments)]

    def recorded(self, keywords: Keywords) -> dict[str, object]:
        """Return the record of the keywords, from which reports reconstruct the call as a command.

        That is the name of the scheme; keys of the scheme that were assigned; and other keywords.
        """
        form: dict[str, object] = {name: keywords[name] for name in FORMS if name in keywords}
        texts = _texts(self.assignments) if self.assignments else ()
        if keys := [text for text in texts if text.partition(".")[0] != MIXING]:
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
        elif isinstance(self.config, Mapping):
            scheme = scheme_from_keys(dict(self.config))
        elif self.config is None and self.deployment:
            scheme = scheme_of(target(self.deployment))
        elif self.config is None:
            scheme = scheme_from_keys(
                {key: value for key, value in _pairs(self.assignments) if key in FORMAT_KEYS}
            )
        else:
            scheme = read_scheme(self.config)
        if self.opset:
            scheme = scheme.with_(opset=self.opset)
        if self.input_shapes:
            scheme = scheme.with_(input_shapes={**scheme.input_shapes, **self.input_shapes})
        return scheme


def names_formats(assignments: Assignments) -> bool:
    """Return whether the keys in ``assignments`` make a scheme without a preset or a file."""
    return {key for key, _ in _pairs(assignments)} >= FORMAT_KEYS


def quantization_scheme(wish: SchemeWish, events: Events) -> Scheme:
    """Return the scheme with what keywords change; ValueError naming the key."""
    scheme = wish.read()
    single = {key: value for key, value in wish.keys.items() if not isinstance(value, list | tuple)}
    if wish.assignments:
        assigned = _assigned(wish, scheme)
        _refuse_twice(assigned, single, "")
        scheme = scheme.with_(**assigned)
    lists = {key: (*getattr(scheme, key), *more) for key, more in wish.keys.items() if key not in single}
    return _fitted(scheme.with_(**{**wish.keys, **lists}), wish, events)


def mixing_scheme(wish: SchemeWish, events: Events) -> Scheme:
    """Return the scheme with changes to its table of automatic mixed precision, which has to exist."""
    scheme = wish.read()
    assigned = _assigned(wish, scheme, apart=(MIXING,))
    tables = assigned.pop(MIXING, {})
    changes = {key: value for key, value in wish.keys.items() if value not in ([], ())}
    _refuse_twice(tables, changes, f"{MIXING}.")
    replaced = set().union(*(old for old, new in _ALTERNATIVES if new & changes.keys()))
    before = scheme.auto_mixed_precision.said if scheme.auto_mixed_precision else {}
    remaining = {key: value for key, value in before.items() if key not in replaced}
    table = {**remaining, **tables, **changes}
    if not table:
        raise ValueError(f"'{wish.name}' has no table [{MIXING}]: give {spelled('{target:FORMAT}')}")
    return _fitted(scheme.with_(**assigned, **{MIXING: table}), wish, events)


def _refuse_twice(assigned: Mapping[str, Any], changes: Mapping[str, Any], table: str) -> None:
    """Raise ValueError for a key that has a value by ``assignments`` and another by its own keyword."""
    for key in sorted(assigned.keys() & changes.keys()):
        pair = f"{named(key, changes[key])} and {as_option('assignments', table + key)}"
        raise ValueError(f"{pair} set the same key: give one of them")


def _fitted(scheme: Scheme, wish: SchemeWish, events: Events) -> Scheme:
    """Return the scheme adapted to the rules of its target, if it has one, and warn of each change."""
    if not wish.deployment:
        return scheme
    fitted, lines = adapted(scheme, target(wish.deployment))
    for line in lines:
        events.warn(line)
    return fitted


def _assigned(wish: SchemeWish, scheme: Scheme, *, apart: Sequence[str] = ()) -> dict[str, Any]:
    """Return the values of ``assignments``, all together: a key may be legal only with a later one.

    ``TABLE.KEY`` adds to the table of the scheme; to nothing, if the table stands ``apart``.
    """
    values: dict[str, Any] = {}
    for key, value in _pairs(wish.assignments):
        for name, assigned in _nested(key, value).items():
            before = values.get(name, None if name in apart else getattr(scheme, name, None))
            values[name] = _added(before, assigned)
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


def _texts(assignments: Assignments) -> Sequence[str]:
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
    """Return the nested table for ``TABLE.KEY`` and a value; a quoted part may contain dots."""
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


def _added(before: Any, assigned: Any) -> Any:
    """Return a table updated recursively with the assigned keys; other values are replaced."""
    if isinstance(before, SchemeTable):
        before = before.said
    if not (isinstance(before, Mapping) and isinstance(assigned, dict)):
        return assigned
    return {**before, **{key: _added(before.get(key), value) for key, value in assigned.items()}}

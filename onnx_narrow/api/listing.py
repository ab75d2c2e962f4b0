"""What there is to choose from: presets, targets and number formats, in tables."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from onnx_narrow.api.usage import fields_in
from onnx_narrow.summaries.words import aligned
from ops.formats import FORMATS
from transforms.scheme import preset
from transforms.scheme.presets import PRESETS, suffixes
from transforms.scheme.targets import TARGETS, Target

_COLUMN = 80
"""Characters of a cell that are shown as text."""


class _Row(Protocol):
    def cells(self) -> Mapping[str, str]:
        """Return what the table shows, by the heads of its columns."""


R = TypeVar("R", bound=_Row)


class Table(dict[str, R]):
    """Rows by their names, shown as a table."""

    def __repr__(self) -> str:
        return "\n".join(aligned([[_shortened(cell) for cell in line] for line in self._lines()]))

    def _repr_html_(self) -> str:
        heads, *lines = self._lines() or [[]]
        rows = [[f"<th>{html.escape(head)}</th>" for head in heads]]
        rows += [[f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in line] for line in lines]
        body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
        return f"<table>{body}</table>"

    def _lines(self) -> list[list[str]]:
        """Return the heads of the columns, and the cells of each row."""
        rows = [{"name": name, **row.cells()} for name, row in self.items()]
        return [[*rows[0]], *([*row.values()] for row in rows)] if rows else []


@dataclass(frozen=True)
class PresetRow:
    """A scheme that has a name.

    Attributes
    ----------
    activation, weight : str
        Names of formats, ``float32`` for values that stay as they are.
    needs_data : bool
        Whether samples are needed, to measure ranges of integers.
    layers : str
        What single layers get beside these formats, empty for nothing.
    tuned : tuple of str
        What may be appended to its name, for weights that are tuned on samples: ``A8W8_ADAQUANT``.
    keys : mapping of str to object
        The keys of the scheme that it sets, see docs/reference/scheme.md.
    """

    activation: str
    weight: str
    needs_data: bool
    layers: str
    tuned: tuple[str, ...]
    keys: Mapping[str, Any] = field(repr=False)

    def cells(self) -> Mapping[str, str]:
        """Return what the table shows, by the heads of its columns."""
        return {
            "activation": self.activation,
            "weight": self.weight,
            "needs": "data" if self.needs_data else "",
            "layers": self.layers,
            "tuned": ", ".join(self.tuned),
        }


@dataclass(frozen=True)
class TargetRow:
    """A runtime that a model can be made for.

    Attributes
    ----------
    runtime : str
        What it is.
    preset : str
        The preset that is used without another ``config``.
    activations, weights : tuple of str
        Names of the formats that it takes.
    rules : tuple of str
        What else a model must meet.
    sources : tuple of str
        The public documents that say so.
    speed, verified : str
        What is fast there, and what was tried on it.
    """

    runtime: str
    preset: str
    activations: tuple[str, ...]
    weights: tuple[str, ...]
    rules: tuple[str, ...]
    sources: tuple[str, ...]
    speed: str
    verified: str

    def cells(self) -> Mapping[str, str]:
        """Return what the table shows, by the heads of its columns."""
        return {
            "preset": self.preset,
            "activations": ", ".join(self.activations),
            "weights": ", ".join(self.weights),
            "rules": ", ".join(self.rules),
        }


@dataclass(frozen=True)
class FormatRow:
    """A number format.

    Attributes
    ----------
    bits : float
        Bits of an element, with its share of what a block has in common.
    block : int
        Elements that share an exponent, 1 for formats without blocks.
    operator : str
        Our operator that rounds to it; models have those of ONNX instead where there are any.
    attributes : mapping of str to object
        Attributes of this operator.
    """

    bits: float
    block: int
    operator: str
    attributes: Mapping[str, Any] = field(repr=False)

    def cells(self) -> Mapping[str, str]:
        """Return what the table shows, by the heads of its columns."""
        return {
            "bits": f"{self.bits:g}",
            "block": str(self.block) if self.block > 1 else "",
            "operator": self.operator,
        }


def presets() -> Table[PresetRow]:
    """Return the presets by name: what ``config`` takes.

    Returns
    -------
    dict of str to PresetRow
        ``activation``, ``weight``, ``needs_data``, ``layers``, ``tuned`` and ``keys`` of each; shown as a
        table.

    Examples
    --------
    >>> import onnx_narrow
    >>> found = onnx_narrow.presets()
    >>> found["W4A8"].weight, found["W4A8"].needs_data
    ('int4', True)
    >>> found["U8S8"].tuned
    ('_ADAQUANT', '_ADAROUND')
    """
    return Table({name: _preset(name, keys) for name, keys in PRESETS.items()})


def targets() -> Table[TargetRow]:
    """Return the runtimes by name: what ``target`` takes.

    Returns
    -------
    dict of str to TargetRow
        ``runtime``, ``preset``, ``activations``, ``weights``, ``rules``, ``sources``, ``speed`` and
        ``verified`` of each; shown as a table.

    Examples
    --------
    >>> import onnx_narrow
    >>> onnx_narrow.targets()["tensorrt"].rules
    ('zero points 0', 'weights from -127', 'opset 13 to 25')
    """
    return Table({name: _target(row) for name, row in TARGETS.items()})


def formats() -> Table[FormatRow]:
    """Return the number formats by name: what schemes take for activations and weights, beside ``float32``.

    Returns
    -------
    dict of str to FormatRow
        ``bits``, ``block``, ``operator`` and ``attributes`` of each; shown as a table.

    Examples
    --------
    >>> import onnx_narrow
    >>> row = onnx_narrow.formats()["mx6"]
    >>> row.bits, row.block, row.operator
    (6.0, 16, 'BFPQuantizeDequantize')
    """
    return Table(
        {name: FormatRow(float(fmt.bits), fmt.block, fmt.op, fmt.attributes) for name, fmt in FORMATS.items()}
    )


def _preset(name: str, keys: Mapping[str, Any]) -> PresetRow:
    scheme = preset(name)
    measured = scheme.format(scheme.activation)
    return PresetRow(
        scheme.activation,
        scheme.weight,
        measured is not None and measured.is_integer,
        _of_layers(keys.get("auto_mixed_precision", {})),
        suffixes(name),
        MappingProxyType(dict(keys)),
    )


def _of_layers(mixing: Mapping[str, Any]) -> str:
    """Return what a table of mixed precision does, in words."""
    if not mixing:
        return ""
    pair = [str(mixing[key]) for key in ("activation_target", "weight_target") if key in mixing]
    formats = str(mixing.get("target", "/".join(pair)))
    drop = mixing.get("sqnr_drop_target")
    return formats if drop is None else f"{formats}, at most {drop:g} dB worse"


def _target(row: Target) -> TargetRow:
    rules = {
        "zero points 0": row.symmetric,
        "power-of-two scales": row.power_of_two,
        "one scale per weight": not row.per_channel,
        "weights from -127": row.narrow_weights,
        "fixed shapes": row.fixed_shapes,
        "opset {} to {}".format(*(row.opsets or ("", ""))): row.opsets is not None,
    }
    met = tuple(words for words, holds in rules.items() if holds)
    return TargetRow(rules=met, **fields_in(TargetRow, vars(row)))


def _shortened(cell: str) -> str:
    return cell if len(cell) <= _COLUMN else f"{cell[: _COLUMN - 3]}..."

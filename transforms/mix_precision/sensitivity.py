"""How much each layer of a model suffers from each format, and how such tables are kept and compared."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class LayerSensitivity:
    """What a format does to one layer.

    ``layer``: its node's name. ``label``: the formats, see LayerRule.label. ``value``: in the unit of the
    metric. ``harm``: the same as a number from 0 that adds up over layers, larger is worse.
    """

    layer: str
    op: str
    label: str
    value: float
    harm: float


@dataclass(frozen=True)
class Sensitivity:
    """Damages of all candidates and formats: ``trace`` (estimated) or ``measured``, by which metric."""

    method: str
    metric: str
    samples: int
    damages: tuple[LayerSensitivity, ...]

    def harm_of(self, layer: str, label: str) -> float:
        """Return the harm of a format in a layer; ValueError where it was not looked at."""
        for damage in self.damages:
            if (damage.layer, damage.label) == (layer, label):
                return damage.harm
        raise ValueError(f"the sensitivities say nothing of '{label}' in layer '{layer}'")

    def ranked(self) -> list[LayerSensitivity]:
        """Return the damages by rising harm, like ones in their order."""
        return sorted(self.damages, key=lambda damage: damage.harm)

    def to_json(self) -> str:
        """Return the table as JSON, from which :meth:`from_json` makes an equal one, to the last bit."""
        damages = [_without_infinity(asdict(damage)) for damage in self.damages]
        head = {"method": self.method, "metric": self.metric, "samples": self.samples}
        return json.dumps({**head, "damages": damages}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @staticmethod
    def from_json(text: str) -> Sensitivity:
        """Return the table that was written as JSON; ValueError of one line for any other text."""
        try:
            values = json.loads(text)
            damages = tuple(_damage(row) for row in values["damages"])
            return Sensitivity(
                _str(values["method"]), _str(values["metric"]), int(values["samples"]), damages
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"these are no sensitivities: {type(error).__name__}: {error}") from error

    def to_csv(self) -> str:
        """Return the damages as lines of comma-separated values, under a line with the names of columns."""
        text = io.StringIO()
        columns = [field.name for field in fields(LayerSensitivity)]
        writer = csv.DictWriter(text, columns, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writeheader()
        writer.writerows(asdict(damage) for damage in self.damages)  # floats as repr does, to the last bit
        return text.getvalue()


def _without_infinity(row: Mapping[str, Any]) -> dict[str, Any]:
    """Write infinities, which JSON does not have, as Python does."""
    return {key: str(x) if isinstance(x, float) and math.isinf(x) else x for key, x in row.items()}


def _damage(row: Mapping[str, Any]) -> LayerSensitivity:
    value, harm = float(row["value"]), float(row["harm"])
    if math.isnan(value) or not harm >= 0:
        raise ValueError(f"value {value} and harm {harm} of a layer")
    return LayerSensitivity(_str(row["layer"]), _str(row["op"]), _str(row["label"]), value, harm)


def _str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no string")
    return value

"""Tables of the output error that each format causes in each layer, and their JSON and CSV form."""

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
    """The effect of quantizing one layer on the outputs.

    ``layer``: the name of its node. ``label``: the formats, see LayerRule.label. ``value``: the metric.
    ``harm``: the error as a number from 0 that is additive over layers, larger is worse.
    """

    layer: str
    op: str
    label: str
    value: float
    harm: float


@dataclass(frozen=True)
class Sensitivity:
    """Effects of all candidates and formats: the metric, and the number of samples it was measured on."""

    metric: str
    samples: int
    damages: tuple[LayerSensitivity, ...]

    def harm_of(self, layer: str, label: str) -> float:
        """Return the harm of a format in a layer; ValueError if it was not measured."""
        for damage in self.damages:
            if (damage.layer, damage.label) == (layer, label):
                return damage.harm
        raise ValueError(f"the sensitivities say nothing of '{label}' in layer '{layer}'")

    def ranked(self) -> list[LayerSensitivity]:
        """Return the rows by rising harm, equal ones in their order."""
        return sorted(self.damages, key=lambda damage: damage.harm)

    def to_json(self) -> str:
        """Return the table as JSON, with numbers that read back exactly."""
        rows = [_without_infinity(asdict(damage)) for damage in self.damages]
        table = {"metric": self.metric, "samples": self.samples, "damages": rows}
        return json.dumps(table, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def to_csv(self) -> str:
        """Return the rows as comma-separated values with a header line."""
        columns = [field.name for field in fields(LayerSensitivity)]
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writeheader()
        writer.writerows(map(asdict, self.damages))  # floats as repr, which is exact
        return text.getvalue()


def _without_infinity(row: Mapping[str, Any]) -> dict[str, Any]:
    """Replace infinities, which JSON does not have, by their Python text."""
    return {key: str(x) if isinstance(x, float) and math.isinf(x) else x for key, x in row.items()}

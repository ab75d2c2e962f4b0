"""How much each layer of a model suffers from each format, and how such tables are written."""

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
    """Damages of all candidates and formats, by which metric, on how many samples."""

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
        """Return the table as JSON, whose numbers read back to the last bit."""
        rows = [_without_infinity(asdict(damage)) for damage in self.damages]
        table = {"metric": self.metric, "samples": self.samples, "damages": rows}
        return json.dumps(table, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def to_csv(self) -> str:
        """Return the rows as comma-separated values, under a line with the names of columns."""
        columns = [field.name for field in fields(LayerSensitivity)]
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writeheader()
        writer.writerows(map(asdict, self.damages))  # floats as repr does, to the last bit
        return text.getvalue()


def _without_infinity(row: Mapping[str, Any]) -> dict[str, Any]:
    """Write infinities, which JSON does not have, as Python does."""
    return {key: str(x) if isinstance(x, float) and math.isinf(x) else x for key, x in row.items()}

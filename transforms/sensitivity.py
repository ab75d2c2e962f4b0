"""How much each layer of a model suffers from each format, and how such tables are kept and compared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Damage:
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
    damages: tuple[Damage, ...]

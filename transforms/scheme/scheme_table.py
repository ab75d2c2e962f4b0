"""The common base of the tables of a scheme: ``[finetune]``, ``[auto_mixed_precision]``, rules of layers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ops.legal_names import refuse_unknown
from transforms.scheme.scheme_values import checked_value


@dataclass(frozen=True, kw_only=True)
class SchemeTable:
    """A parsed table; ``written``: its keys and values as the scheme gave them, in their order."""

    written: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def key_names(cls) -> list[str]:
        """Return the names of all keys that the table can have."""
        return [key.name for key in dataclasses.fields(cls) if key.name != "written"]

    @classmethod
    def parse(cls, name: str, values: object) -> Self | None:
        """Return the table of that name, or None without keys; a parsed table is returned unchanged.

        Raises ValueError unless it is a table, and for an unknown key.
        """
        if values is None or isinstance(values, cls):
            return values
        written = checked_value(name, "Mapping", values)
        for key in written:
            refuse_unknown(str(key), cls.key_names(), f"{name} key")
        return cls(**written, written=written) if written else None

    @property
    def said(self) -> dict[str, Any]:
        """The table as it was written, or with all its values if it was not parsed."""
        if self.written and type(self)(**self.written) == self:
            return dict(self.written)
        values = {key: getattr(self, key) for key in self.key_names()}
        return {key: value for key, value in values.items() if value is not None}

    def _check_ranges(self, name: str, ranges: Mapping[str, tuple[float, float]]) -> None:
        """Raise ValueError naming table, key and value for a number outside of the range of its key."""
        for key, (least, most) in ranges.items():
            value = getattr(self, key)
            if value is not None and not (math.isfinite(value) and least <= value <= most):
                ends = f"from {least}" if math.isfinite(least) else "of any sign"
                ends += f" to {most}" if math.isfinite(most) else ""
                raise ValueError(f"{name} {key} is {value}, legal are numbers {ends}")

    def _check_types(self, name: str) -> None:
        """Convert values to the annotated types; ValueError naming table, key and value."""
        kinds = {key.name: str(key.type) for key in dataclasses.fields(self)}
        for key in self.key_names():
            object.__setattr__(self, key, checked_value(f"{name} {key}", kinds[key], getattr(self, key)))

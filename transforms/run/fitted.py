"""Convert arrays of a caller that fit an input except for their type or a missing batch dimension."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ops.array_types import AnyArray, Feed
from transforms.files.array_header import ArrayHeader
from transforms.runtime.inputs import ModelInput


class Fitting:
    """Converts arrays to the type and rank of an input if no number changes its meaning, and notes it.

    Floats get another width unless one becomes infinite; integers, booleans and pixels become other integers
    or floats if each keeps its value; an array with one dimension less gets a batch dimension of 1, if the
    input allows it. All other arrays stay as they are, for :func:`transforms.runtime.inputs.check_feed` to
    refuse.
    """

    def __init__(self) -> None:
        """Start without any conversion."""
        self._changes: dict[str, str] = {}

    def of(self, feed: Feed, inputs: Sequence[ModelInput]) -> dict[str, AnyArray]:
        """Return the arrays of a sample, converted to fit the inputs of a model."""
        by_name = {model_input.name: model_input for model_input in inputs}
        return {name: self._fit(array, by_name.get(name)) for name, array in feed.items()}

    def of_headers(
        self, headers: Mapping[str, ArrayHeader], inputs: Sequence[ModelInput]
    ) -> dict[str, ArrayHeader]:
        """Return the headers of arrays after conversion, as far as it does not depend on numbers."""
        wanted = {one.name: one for one in inputs}
        return {name: _header(one, wanted.get(name)) for name, one in headers.items()}

    def lines(self) -> Iterator[str]:
        """Yield a line for each input whose arrays were converted."""
        for name, change in self._changes.items():
            yield f"Samples: arrays for input '{name}' {change}"

    def _fit(self, array: AnyArray, wanted: ModelInput | None) -> AnyArray:
        if wanted is None:
            return array
        typed, changes = _cast(array, wanted.dtype), []
        if typed is not array:
            changes.append(f"cast from {array.dtype} to {wanted.dtype}")
        shape = wanted.shape
        if _lacks_batch(typed.shape, shape):
            typed = typed[None]
            changes.append("taken as a batch of one")
        if changes:
            self._changes.setdefault(wanted.name, " and ".join(changes))
        return typed


def _lacks_batch(given: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return len(given) == len(wanted) - 1 and wanted[0] in (None, 1)


def _is_cast(given: np.dtype, wanted: np.dtype) -> bool:
    """Return whether numbers of one type may be converted to another."""
    return given != wanted and given.kind in "fiub" and wanted.kind in ("f" if given.kind == "f" else "fiu")


def _header(header: ArrayHeader, wanted: ModelInput | None) -> ArrayHeader:
    if wanted is None:
        return header
    dtype = wanted.dtype if _is_cast(header.dtype, wanted.dtype) else header.dtype
    lead = (1,) if _lacks_batch(header.shape, wanted.shape) else ()
    return ArrayHeader(dtype, (*lead, *header.shape))


def _cast(array: AnyArray, dtype: np.dtype) -> AnyArray:
    """Convert numbers if each keeps its value, floats up to rounding; else return them unchanged."""
    if not _is_cast(array.dtype, dtype):
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(dtype)
    if array.dtype.kind == "f":
        is_same = np.array_equal(np.isfinite(array), np.isfinite(converted))
    else:
        is_same = np.array_equal(converted.astype(array.dtype), array) and np.array_equal(
            converted < 0, array < 0
        )
    return converted if is_same else array

"""A file of calibration statistics, by model, data and versions.

The file holds entries for any number of models and data sets. An entry grows by the tensors that are
requested, and serves every method for which its statistics suffice. Written as JSON they are exact: numbers
as Python writes them, arrays as compressed bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.calibrate.calibrate import Calibration, CalibrationOptions, calibrate, limit
from transforms.calibrate.calibration import FOLDS
from transforms.calibrate.histogram import BINS, Histogram
from transforms.calibrate.range_statistics import Moments, RangeStats, SampleEnds
from transforms.files.cleanup import destination, locked, replacing
from transforms.files.model_files import clear_leftovers
from transforms.files.named_file import in_words, read_text
from transforms.files.paths import AnyPath
from transforms.graph.dot_products import TensorAxis
from transforms.model import provenance
from transforms.model.graph_proto import model_hash
from transforms.model_io import check_output
from transforms.run.feeds import Feeds

_FORMAT = "onnx-narrow calibration 3"

_HALVES = (" even", " odd")  # key suffixes: samples covered by an entry
_FOLDS = tuple(f" fold {number}" for number in range(FOLDS))

_LARGEST = 1 << 30
"""Limit of a cache in bytes: histograms of a thousand tensors, for dozens of models and data sets."""

_LARGEST_ARRAY = 1 << 28  # bytes: a longer array is not one of our statistics

Entries = dict[str, dict[str, Any]]  # statistics as JSON, by tensor, by key


def calibrate_cached(
    path: AnyPath,
    graph: gs.Graph,
    names: Collection[str],
    feeds: Feeds,
    options: CalibrationOptions | None = None,
    *,
    channels: Collection[TensorAxis] = (),
    halved: bool = False,
    folded: bool = False,
    **how: Any,
) -> tuple[Calibration, int]:
    """Calibrate the tensors that the file at ``path`` lacks.

    Arguments are those of :func:`transforms.calibrate.calibrate.calibrate`. Returns the calibration and how
    many of its tensors came from the file, to which the others are added; the file is created if it does not
    exist. The data are read once to identify them, and once more if anything is missing. Raises ValueError
    if the file is not a calibration cache, or the feeds are not repeatable; OSError if the file cannot be
    read or written. It is written atomically.
    """
    path, options = check_output(path, force=True), options or CalibrationOptions()
    entries = _read(path)
    # which tensors does the file hold, with all requested statistics?
    suffixes = ("", *(_HALVES if halved else ()), *(_FOLDS if folded else ()))
    keys = [_key(graph, feeds, options) + part for part in suffixes]
    axes: dict[str, set[int]] = {name: set() for name in names}
    for name, axis in channels:
        axes.setdefault(name, set()).add(axis)
    statistics = [
        {name: _decode(path, name, entry) for name, entry in entries.get(key, {}).items()} for key in keys
    ]
    stored = statistics[0]
    complete_names = [
        name
        for name in axes
        if all(name in part and _is_enough(part[name], options, axes[name]) for part in statistics)
    ]
    missing = [name for name in axes if name not in complete_names]
    if not missing:
        return _calibration(graph, options, statistics, axes, halved), len(complete_names)
    # run the model for the others, and add them to the file
    new = calibrate(
        graph,
        missing,
        feeds,
        options,
        channels=[(n, axis) for n in missing for axis in _axes(axes[n], stored.get(n))],
        halved=halved,
        folded=folded,
        **how,
    )
    measured = (new.observed, *new.halves, *new.folds)
    for key, part in zip(keys, measured, strict=True):
        _add(path, key, part)
    statistics = [{**old, **part} for old, part in zip(statistics, measured, strict=True)]
    return _calibration(graph, options, statistics, axes, halved), len(complete_names)


def _calibration(
    graph: gs.Graph,
    options: CalibrationOptions,
    parts: Sequence[Mapping[str, RangeStats]],
    names: Collection[str],
    halved: bool,
) -> Calibration:
    whole, *others = ({name: part[name] for name in names} for part in parts)
    limit(graph, whole, *others)
    count = len(_HALVES) * halved
    return Calibration(options, whole, others[:count], folds=others[count:])


def _is_enough(observed: RangeStats, options: CalibrationOptions, axes: set[int]) -> bool:
    has_histogram = not options.needs_histogram or observed.histogram is not None
    return has_histogram and axes <= observed.moments.keys()


def _axes(wanted: set[int], stored: RangeStats | None) -> list[int]:
    """Return the axes to measure along, including those of the entry, which will be overwritten."""
    return sorted(wanted | (stored.moments.keys() if stored else set()))


def _key(graph: gs.Graph, feeds: Feeds, options: CalibrationOptions) -> str:
    """Return a hash of what statistics depend on: versions, model, data, and what is kept of a tensor."""
    settings = {"histogram": options.needs_histogram, "averaging_constant": options.averaging_constant}
    parts = [provenance.software(), model_hash(graph), feeds.hash(), json.dumps(settings)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _read(path: Path) -> Entries:
    try:
        content = json.loads(read_text(path, _LARGEST))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"'{path}' is not a calibration cache: {in_words(error)}") from error
    entries = content.get("entries") if isinstance(content, dict) else None
    if entries is None or content.get("format") != _FORMAT:
        raise ValueError(f"'{path}' is not a calibration cache: it does not say '{_FORMAT}'")
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise ValueError(f"'{path}' is a broken calibration cache: entries are not by key and tensor")
    return entries


def _decode(path: Path, name: str, entry: dict[str, Any]) -> RangeStats:
    try:
        return decode(entry)
    except Exception as error:  # numbers of any kind may cause any error
        raise ValueError(f"'{path}' is a broken calibration cache: tensor '{name}': {error!r}") from error


def _add(path: Path, key: str, observed: Mapping[str, RangeStats]) -> None:
    """Add to an entry; entries written by others meanwhile stay."""
    folder = destination(path).parent
    clear_leftovers(folder)
    with locked(folder):
        entries = _read(path)
        entries[key] = entries.get(key, {}) | {
            name: encode(statistics) for name, statistics in observed.items()
        }
        with replacing(path) as temporary:
            temporary.write_text(json.dumps({"format": _FORMAT, "entries": entries}), encoding="utf-8")


def encode(observed: RangeStats) -> dict[str, Any]:
    """Return statistics in a form that ``json`` can write."""
    result: dict[str, Any] = {"numbers": observed.count}
    if observed.has_nan:
        result["nan"] = True
    if not observed.is_empty:
        ends = observed.ends
        result |= {"range": [observed.low, observed.high], "average": observed.average}
        result["ends"] = [ends.count, ends.total, ends.squares]
    if histogram := observed.histogram:
        result["histogram"] = {"exponent": histogram.exponent, "counts": _pack(histogram.counts)}
    if observed.moments:
        result["moments"] = [
            {
                "axis": moments.axis,
                "count": moments.count,
                "sums": None if moments.sums is None else _pack(moments.sums),
            }
            for moments in observed.moments.values()
        ]
    return result


def decode(entry: dict[str, Any]) -> RangeStats:
    """Return the statistics of an entry made by ``encode``; raise an error of any kind for another one."""
    observed = RangeStats(count=int(entry["numbers"]), has_nan=entry.get("nan") is True)
    if "range" in entry:
        observed.low, observed.high = map(float, entry["range"])
        low, high = map(float, entry["average"])
        count, total, squares = entry["ends"]
        observed.average, observed.ends = (low, high), SampleEnds(int(count), total, squares)
        if not -math.inf < observed.low <= observed.high < math.inf:
            raise ValueError(f"range {entry['range']} is none")
        if (
            len(total) != 3
            or len(squares) != 3
            or not all(0 <= moments < math.inf for moments in total + squares)
        ):
            raise ValueError(f"{entry['ends']} are not sums of the ends of samples")
    if "histogram" in entry:
        stored = entry["histogram"]
        counts, exponent = _unpack(stored["counts"], np.int64), int(stored["exponent"])
        if len(counts) != BINS or counts.min() < 0 or exponent not in range(-100, 129):
            raise ValueError(f"there are no {BINS} counts up to a power of two that are not negative")
        observed.histogram = Histogram(exponent, counts)
    for moments in entry.get("moments", ()):
        sums = None if moments["sums"] is None else _unpack(moments["sums"], np.float64).reshape(2, -1)
        if moments["axis"] in observed.moments:
            raise ValueError(f"axis {moments['axis']} has moments twice")
        observed.moments[int(moments["axis"])] = Moments(int(moments["axis"]), sums, int(moments["count"]))
    return observed


def _pack(array: NDArray[Any]) -> str:
    little = array.astype(array.dtype.newbyteorder("<"))
    return base64.b64encode(zlib.compress(little.tobytes(), 1)).decode()


def _unpack(text: str, dtype: type[np.generic]) -> NDArray[Any]:
    """Return the array; never decompress more than a valid text would hold."""
    data = zlib.decompressobj().decompress(base64.b64decode(text), _LARGEST_ARRAY)
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).astype(dtype)

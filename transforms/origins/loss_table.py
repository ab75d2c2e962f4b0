"""Origins of errors as a table: a list of rows by name, for pandas, a CSV file or JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from ops.array_types import Feed
from transforms import model_io
from transforms.conversion.float_reference import float_reference
from transforms.files.paths import AnyPath
from transforms.judge.constants import MOST_SAMPLES
from transforms.origins.loss_origins import LossOrigins, find_origins
from transforms.run.events import Progress
from transforms.runtime.session import RunOptions

Row = dict[str, Any]


def origins_of_files(
    float_path: AnyPath,
    quantized_path: AnyPath,
    feeds: Iterable[Feed],
    run: RunOptions | None = None,
    progress: Progress | None = None,
) -> LossOrigins:
    """Return where the loss of a quantized model begins, in this process.

    ``feeds``: samples, of which the first ``MOST_SAMPLES`` are taken. Raises as
    :func:`transforms.origins.loss_origins.find_origins` does, and as loading models does.
    """
    quantized = model_io.load(quantized_path)
    reference = float_reference(lambda: model_io.load(float_path), quantized)
    return find_origins(reference, quantized, list(islice(feeds, MOST_SAMPLES)), run, progress)


def loss_table(
    float_path: AnyPath, quantized_path: AnyPath, feeds: Iterable[Feed], run: RunOptions | None = None
) -> list[Row]:
    """Return a row for each layer, in the order of the model: ``pandas.DataFrame(loss_table(...))``."""
    return rows(origins_of_files(float_path, quantized_path, feeds, run))


def rows(origins: LossOrigins) -> list[Row]:
    """Return a row for each layer.

    ``share`` is that of the main output; ``rank`` the place among the layers named for it, None for others.
    SQNR in dB, infinite where nothing is lost.
    """
    main = origins.main
    ranks = {place: rank for rank, place in enumerate(main.named, 1)}
    return [
        {
            "place": place + 1,
            "layer": one.part.name,
            "operator": one.part.op,
            "nodes": list(one.part.nodes),
            "own_db": one.own,
            "inherited_db": one.inherited,
            "total_db": one.total,
            "share": one.shares[main.name],
            "rank": ranks.get(place),
            "cause": origins.causes[place].words if place in origins.causes else None,
            "helps": list(origins.causes[place].helps) if place in origins.causes else [],
        }
        for place, one in enumerate(origins.layers)
    ]


def to_csv(origins: LossOrigins) -> str:
    """Return the rows as CSV, names of several nodes separated by spaces."""
    table = rows(origins)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]), lineterminator="\n")
    writer.writeheader()
    for row in table:
        joined = {"nodes": " ".join(row["nodes"]), "helps": "; ".join(row["helps"])}
        writer.writerow({**row, **joined})
    return text.getvalue()


def to_json(origins: LossOrigins, about: Mapping[str, object] | None = None) -> str:
    """Return layers, outputs and ranges of inputs as JSON; what is not finite is null."""
    layers = origins.layers
    found = {
        **(about or {}),
        "samples": origins.samples,
        "outputs": [
            {
                "name": one.name,
                "is_cache": one.is_cache,
                "sqnr_db": one.sqnr,
                "named": [layers[place].part.name for place in one.named],
                "sqnr_db_with_named_in_float": one.without,
                "sqnr_db_with_others_in_float": one.others,
                "share_of_named": one.share,
            }
            for one in origins.outputs
        ],
        "layers": [{**row, "shares": one.shares} for row, one in zip(rows(origins), layers, strict=True)],
        "inputs": [{**vars(one), "is_suspect": one.is_suspect} for one in origins.inputs],
        "without_counterpart": list(origins.unpaired),
    }
    return json.dumps(_finite(found), indent=1, allow_nan=False) + "\n"


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(one) for one in value]
    return value

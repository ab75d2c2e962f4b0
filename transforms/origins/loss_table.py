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

    ``feeds``: samples, of which the first ``MOST_SAMPLES`` are used. Raises as
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

    ``share`` is the share of the main output's error; ``rank`` the place among its named layers, else None.
    SQNR is in dB, infinite without a loss.
    """
    main = origins.main
    ranks = {place: rank for rank, place in enumerate(main.named, 1)}
    return [
        {
            "place": place + 1,
            "layer": layer.part.name,
            "operator": layer.part.op,
            "nodes": list(layer.part.nodes),
            "own_db": layer.own,
            "inherited_db": layer.inherited,
            "total_db": layer.total,
            "share": layer.shares[main.name],
            "rank": ranks.get(place),
            "cause": origins.causes[place].words if place in origins.causes else None,
            "helps": list(origins.causes[place].helps) if place in origins.causes else [],
        }
        for place, layer in enumerate(origins.layers)
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
    """Return layers, outputs and ranges of inputs as JSON; non-finite numbers are null."""
    layers = origins.layers
    document = {
        **(about or {}),
        "samples": origins.samples,
        "outputs": [
            {
                "name": output.name,
                "is_cache": output.is_cache,
                "sqnr_db": output.sqnr,
                "named": [layers[place].part.name for place in output.named],
                "sqnr_db_with_named_in_float": output.without,
                "sqnr_db_with_others_in_float": output.others,
                "share_of_named": output.share,
            }
            for output in origins.outputs
        ],
        "layers": [{**row, "shares": layer.shares} for row, layer in zip(rows(origins), layers, strict=True)],
        "inputs": [{**vars(entry), "is_suspect": entry.is_suspect} for entry in origins.inputs],
        "without_counterpart": list(origins.unpaired),
    }
    return json.dumps(_finite(document), indent=1, allow_nan=False) + "\n"


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(item) for item in value]
    return value

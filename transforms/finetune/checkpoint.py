"""Tuned layers in a file, from which an interrupted run continues."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from transforms.files.array_header import read_headers
from transforms.files.atomic_write import replacing
from transforms.files.named_file import in_words
from transforms.finetune.tune_layer import LayerSolution

_EVERY = 10.0  # seconds between two writes of the file


@dataclass
class Checkpoint:
    """Solutions and reports by attempt and number of the layer, with the ``key`` of their run."""

    path: Path
    key: str
    _entries: dict[str, tuple[LayerSolution | None, dict[str, Any]]] = field(default_factory=dict)
    _written: float = field(default_factory=time.monotonic)

    @classmethod
    def open(cls, path: Path, key: str) -> Checkpoint:
        """Return the checkpoint in a file, or an empty one if the file does not exist.

        Raises ValueError for a file of another run, and for a file that is not a checkpoint.
        """
        checkpoint = cls(path, key)
        if path.exists():
            checkpoint._read()
        return checkpoint

    def get(self, attempt: str, number: int) -> tuple[LayerSolution | None, dict[str, Any]] | None:
        """Return the solution of a layer (None: unchanged) and its report; None if it was not visited."""
        return self._entries.get(f"{attempt} {number}")

    def put(self, attempt: str, number: int, found: LayerSolution | None, report: Mapping[str, Any]) -> None:
        """Add a layer; the file is written from time to time."""
        self._entries[f"{attempt} {number}"] = found, dict(report)
        if time.monotonic() - self._written > _EVERY:
            self.write()

    def write(self) -> None:
        """Write the file, whole or not at all."""
        arrays: dict[str, np.ndarray] = {}
        index = []
        for name, (found, report) in self._entries.items():
            index.append({"name": name, "report": report, "what": found.what if found else None})
            if found is None:
                continue
            place = f"{len(index) - 1}"
            arrays |= {f"{place}.weights": found.weights.astype(np.float32), f"{place}.bias": found.bias}
            if found.scale is not None:
                scale, zero_point = found.scale
                arrays |= {f"{place}.scale": scale, f"{place}.zero_point": zero_point.astype(np.int64)}
        head = json.dumps({"key": self.key, "layers": index})
        with replacing(self.path) as temporary, temporary.open("wb") as file:
            np.savez(file, head=np.array(head), **arrays)  # type: ignore[arg-type]
        self._written = time.monotonic()

    def _read(self) -> None:
        try:
            read_headers(self.path)
            with np.load(self.path, allow_pickle=False) as archive:
                head = json.loads(str(archive["head"]))
                key, layers = head["key"], head["layers"]
                for i, one in enumerate(layers):
                    self._entries[one["name"]] = _candidate(archive, i, one["what"]), one["report"]
        except Exception as error:  # readers of archives share no narrower class
            if isinstance(error, OSError) and error.filename:
                raise
            raise ValueError(f"'{self.path}' is not a checkpoint: {in_words(error)}") from error
        if key != self.key:
            raise ValueError(
                f"checkpoint '{self.path}' is of other models, data, options or versions: remove it first"
            )


def _candidate(archive: Mapping[str, np.ndarray], i: int, what: str | None) -> LayerSolution | None:
    if what is None:
        return None
    scale = (archive[f"{i}.scale"], archive[f"{i}.zero_point"]) if f"{i}.scale" in archive else None
    return LayerSolution(what, archive[f"{i}.weights"].astype(np.float64), archive[f"{i}.bias"], scale)

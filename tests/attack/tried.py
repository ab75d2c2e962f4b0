"""One model on disk and what is tried with it: the tools in this process, claims that fall, notes."""

from __future__ import annotations

import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.attack.graphs.tool_runs import Fallen, Outcome, call
from tests.attack.rolled import Feeds


@dataclass
class Tries:
    """A model in a folder, beside folders of samples, with what fell and what was noted."""

    source: Path
    fallen: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._bytes = self.source.read_bytes()

    @property
    def folder(self) -> Path:
        """The folder that all of it lies in."""
        return self.source.parent

    def save(self, name: str, feeds: Sequence[Feeds]) -> Path:
        """Write samples to a folder of that name."""
        folder = self.folder / name
        folder.mkdir()
        for i, feed in enumerate(feeds):
            self.write(folder / f"s{i}.npz", feed)
        return folder

    @staticmethod
    def write(path: Path, arrays: Feeds) -> None:
        """Write arrays under any names: savez takes none of those of its own parameters."""
        with zipfile.ZipFile(path, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w") as file:
                    np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)

    def convert(self, tool: str, *options: str) -> Outcome:
        """Return what a tool makes of the model; names of folders among the options become paths."""
        words = [str(self.folder / word) if (self.folder / word).is_dir() else word for word in options]
        outcome = call(tool, self.source, self.folder / "out.onnx", *words)
        if outcome.model is None:
            reason = re.sub(r"'.*?'", "'...'", outcome.refusal or outcome.said)
            self.notes.append(f"refused: {' '.join(reason.split())[:110]}")
        return outcome

    def attempt(self, what: str, step: Callable[..., None], *arguments: Any) -> None:
        """Take a step; note what fell."""
        try:
            step(*arguments)
        except Fallen as error:
            self.fallen.append(f"{what}: {error}")

    @contextmanager
    def temporary_files(self) -> Iterator[None]:
        """Put temporary files into a folder of their own; note those that are left at the end."""
        own = self.folder / "tmp"
        own.mkdir()
        before, tempfile.tempdir = tempfile.tempdir, str(own)
        try:
            yield
        finally:
            tempfile.tempdir = before
        left = [path.name for path in own.iterdir()]
        if left:
            self.fallen.append(f"left {left} among the temporary files")

    @property
    def failure(self) -> str | None:
        """What fell, in a line; None if all held."""
        if self.source.read_bytes() != self._bytes:
            self.fallen.append("the input was changed")
        (self.folder / "notes.txt").write_text("\n".join(self.notes), encoding="utf-8")
        return " | ".join(" ".join(text.split()) for text in self.fallen) or None


def on_model(model: onnx.ModelProto, folder: Path) -> Tries:
    """Write a model to a folder and return what is tried with it."""
    source = folder / "in.onnx"
    source.write_bytes(model.SerializeToString(deterministic=True))
    return Tries(source)

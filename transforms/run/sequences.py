"""Sequences: samples with many steps, each of which takes the model's states of the step before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from ops.legal_names import refuse_unknown
from transforms.files.array_archive import read_arrays, read_headers
from transforms.files.named_file import named
from transforms.graph.state_outputs import first_state, found_pairs, state_pairs
from transforms.run.array_files import find_files, is_litter, natural_order, read_array
from transforms.run.fitted import Fitting
from transforms.run.image_options import ImageOptions
from transforms.run.samples import SAMPLE_SUFFIXES, Samples
from transforms.runtime.inputs import ModelInput, check_feed
from transforms.runtime.session import OpenModel

DIGITS = 6
"""Digits of a step's number in its name: ``speech.000012`` is the twelfth step of ``speech``."""


@dataclass(frozen=True)
class Step:
    """A step of a sequence: its name, the model's feed, and its outputs."""

    name: str
    feed: Feed
    outputs: Mapping[str, np.ndarray]


class Sequences:
    """The sequences of a folder for a model with states.

    A sequence is a folder of samples, its steps in natural order; or a file of arrays with one dimension
    more than the inputs, which is time. In an .npz file, arrays with the input's own rank are the same at
    each step. States are zero before the first step, or what the samples hold for it; values that samples
    hold for later steps are ignored. ``states``: by input of a state, the output that feeds it. ``unfed``:
    the same for inputs that look like states, but are fed from the samples.
    """

    def __init__(
        self,
        model: OpenModel,
        graph: gs.Graph,
        folder: Path,
        images: ImageOptions | None = None,
        limit: int | None = None,
        named_states: Mapping[str, str] | None = None,
    ) -> None:
        """List the folder, at most ``limit`` sequences, for a model and its graph.

        ``named_states``: states named by the user. Raises OSError or ValueError for a folder without
        sequences, and ValueError as :func:`state_pairs` does.
        """
        self._model, self._images, self._fitting = model, images, Fitting()
        self._paths = _find(folder)[:limit]
        held = _held(self._paths[0])
        with named(self._paths[0]):
            for name in held or ():
                refuse_unknown(name, [value.name for value in model.inputs], "input")
        self.states = state_pairs(graph, named_states, held)
        self.unfed = {
            fed: back
            for fed, back in found_pairs(graph).items()
            if fed not in self.states and back not in self.states.values()
        }
        ends = {str(value.name): value for value in (*graph.inputs, *graph.outputs)}
        self._first = {
            value.name: np.zeros(first_state(ends[value.name].shape, ends[back].shape), value.dtype)
            for value in model.inputs
            if (back := self.states.get(value.name))
        }
        rolled = set(self.states).difference(held or ())
        self._inputs = tuple(value for value in model.inputs if value.name not in rolled)
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"two sequences in '{folder}' have the same name except for the ending")

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self._paths)

    @property
    def names(self) -> list[str]:
        """The names of the sequences."""
        return [path.stem for path in self._paths]

    def __iter__(self) -> Iterator[tuple[str, Iterator[Step]]]:
        """Yield name and steps of each; ValueError for a step that does not fit the model."""
        for path in self._paths:
            yield path.stem, self._run(path)

    def _run(self, path: Path) -> Iterator[Step]:
        """Run the steps of a sequence, each with the states of the previous one."""
        state: Mapping[str, np.ndarray] = self._first
        for number, feed in enumerate(self._steps(path), 1):
            full = {**state, **feed} if number == 1 else {**feed, **state}
            outputs = self._model.run(full)
            state = {fed: outputs[back] for fed, back in self.states.items()}
            yield Step(f"{path.stem}.{number:0{DIGITS}}", full, outputs)

    def _steps(self, path: Path) -> Iterable[Feed]:
        if path.is_dir():
            steps = Samples(path, self._inputs, self._images, fitting=self._fitting)
            return (feed for _, feed in steps)
        with named(path):
            arrays = _read(path, self._inputs)
            lengths = {
                len(arrays[wanted.name])
                for wanted in self._inputs
                if wanted.name in arrays and arrays[wanted.name].ndim == len(wanted.shape) + 1
            }
            if len(lengths) != 1:
                why = f"arrays of {sorted(lengths)} steps" if lengths else "no array has a first axis of time"
                raise ValueError(why)
        return self._cut(path.name, arrays, lengths.pop())

    def _cut(self, name: str, arrays: Mapping[str, np.ndarray], steps: int) -> Iterator[Feed]:
        ranks = {wanted.name: len(wanted.shape) for wanted in self._inputs}
        for i in range(steps):
            feed = {
                key: np.ascontiguousarray(array[i]) if array.ndim == ranks.get(key, -2) + 1 else array
                for key, array in arrays.items()
            }
            fitted = self._fitting.of(feed, self._inputs)
            check_feed(self._inputs, fitted, f"{name}, step {i + 1}")
            yield fitted


def _find(folder: Path) -> list[Path]:
    """Return the sequences of a folder in natural order; ValueError if there are none."""
    folders = {path.name: path for path in folder.iterdir() if path.is_dir() and not is_litter(path.name)}
    found = {**folders, **find_files(folder, (".npz", ".npy"))}
    if not found:
        raise ValueError(f"folder '{folder}' holds no sequence: a folder of steps, .npz or .npy")
    return [found[name] for name in sorted(found, key=natural_order)]


def _held(path: Path) -> set[str] | None:
    """Return the names of a sequence's arrays; None for files without names, such as .npy and images."""
    files = [*find_files(path, SAMPLE_SUFFIXES).values()] if path.is_dir() else [path]
    if not files or files[0].suffix.lower() != ".npz":
        return None
    with named(files[0]):
        return set(read_headers(files[0]))


def _read(path: Path, inputs: Sequence[ModelInput]) -> dict[str, np.ndarray]:
    if path.suffix.lower() == ".npz":
        return read_arrays(path)
    if len(inputs) != 1:
        names = ", ".join(f"'{one.name}'" for one in inputs)
        raise ValueError(f"the model has inputs {names}, which takes a .npz file")
    return {inputs[0].name: read_array(path)}

"""Running a model on a folder of samples, saving its outputs one by one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onnx_narrow.api.result_folders import check_results, output_folders
from onnx_narrow.api.samples import SampleOptions
from onnx_narrow.api.unrolled import sequences_of
from ops.legal_names import refuse_unknown
from transforms.compare.measure_run import Data as FolderData
from transforms.files.output_file import GENERATED, write_array
from transforms.pipelines.source import Source
from transforms.run.continue_greedily import GreedyWriter
from transforms.run.events import Events, each_told
from transforms.run.samples import Samples
from transforms.run.sequences import Sequences, Step
from transforms.runtime.session import OpenModel

_Piece = tuple[str, dict[str, np.ndarray] | Iterator[Step]]
"""The name of a sample with its arrays, or of a sequence with its steps."""

_Computed = tuple[str, Mapping[str, np.ndarray], float]
"""The name of a sample or step, its outputs, and the seconds of the model."""


@dataclass(frozen=True)
class SavedOutputs:
    """A finished run: ``runs`` of the model, total ``seconds``, and seconds ``computing`` in the model.

    ``folders``: of each output. ``widened``: bfloat16 nodes that ran in float32.
    """

    samples: Samples | Sequences
    folders: Mapping[str, Path]
    runs: int
    seconds: float
    computing: float
    widened: int


def save_outputs(
    source: Source, data: FolderData, output: Path, options: SampleOptions, events: Events
) -> SavedOutputs:
    """Run a model on each sample of a folder, and save its outputs in the folder ``output``.

    ``options``: whether samples are sequences, their states, and which outputs are wanted. Raises ValueError
    or OSError before the first run for unknown outputs or ones that cannot be saved, and for samples
    that do not fit.
    """
    events.phase("loading")
    model = source.open(data.options)
    names = _chosen(model, options)
    writer = GreedyWriter(model, source.load()) if options.generate else None
    in_steps = sequences_of(options, data.folder, source, model) if options.sequences else None
    samples = in_steps or data.samples(model.inputs)
    folders = output_folders(output, [*names, GENERATED] if writer else names)
    _check_folders(folders.values(), samples.names, data.folder, options)
    start = time.perf_counter()
    progress = events.phase("running", "sequence" if options.sequences else "sample")
    pieces: Iterable[_Piece] = samples
    results = _outputs(model, each_told(pieces, progress, len(samples)), names, writer, options.generate)
    runs, computing = _save_all(results, folders)
    return SavedOutputs(samples, folders, runs, time.perf_counter() - start, computing, model.widened)


def _chosen(model: OpenModel, options: SampleOptions) -> Sequence[str]:
    """Return the outputs to save. Raises ValueError for one that is unknown or cannot be saved."""
    for name in options.output_names:
        refuse_unknown(name, model.outputs, "output")
    names = list(dict.fromkeys(options.output_names)) or ([] if options.generate else model.outputs)
    for argument in model.session.get_outputs():
        if argument.name in names and not argument.type.startswith("tensor("):
            raise ValueError(f"output '{argument.name}' of type {argument.type} cannot be saved as .npy")
    return names


def _check_folders(folders: Iterable[Path], names: Sequence[str], data: Path, options: SampleOptions) -> None:
    """Raise for a folder in which results cannot be written, or in which samples lie."""
    source = options.data
    sample_folders = [data, *([Path(source)] if isinstance(source, str | os.PathLike) else [])]
    for folder in folders:
        if folder.exists() and any(folder.samefile(sample_folder) for sample_folder in sample_folders):
            raise ValueError(
                f"output folder '{folder}' is the folder of samples, which are never overwritten"
            )
        check_results(folder, names)


def _outputs(
    model: OpenModel,
    samples: Iterable[_Piece],
    names: Sequence[str],
    writer: GreedyWriter | None,
    count: int,
) -> Iterator[_Computed]:
    """Yield the outputs of the model for each sample, or for each step of a sequence.

    ``writer``: continues samples by ``count`` tokens.
    """
    for name, piece in samples:
        start = time.perf_counter()
        if isinstance(piece, dict):
            outputs = model.run(piece, names)
            if writer:
                outputs[GENERATED] = writer.write(piece, count, name)
            yield name, outputs, time.perf_counter() - start
            continue
        for step in piece:
            yield step.name, step.outputs, time.perf_counter() - start
            start = time.perf_counter()


def _save_all(results: Iterable[_Computed], folders: Mapping[str, Path]) -> tuple[int, float]:
    """Save outputs; return the number of runs, and the seconds in the model."""
    runs, seconds = 0, 0.0
    for name, outputs, elapsed in results:
        runs, seconds = runs + 1, seconds + elapsed
        for output, folder in folders.items():
            folder.mkdir(parents=True, exist_ok=True)
            write_array(folder / f"{name}.npy", outputs[output])
    return runs, seconds

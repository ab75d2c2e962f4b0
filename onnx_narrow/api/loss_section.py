"""Where the loss of a quantized model begins, as a section of a page and as lines; or why it is unknown."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx_graphsurgeon as gs

from onnx_narrow.charts.origins_section import origins_section
from onnx_narrow.summaries.model_history import ModelHistory
from onnx_narrow.summaries.origins import lines
from transforms import model_io
from transforms.compare.measure_run import Data as FolderData
from transforms.files.output_file import total_bytes
from transforms.graph import walk
from transforms.graph.selection import label_of
from transforms.graph.typed import info_of, source_files
from transforms.judge.budget import too_large
from transforms.origins.loss_origins import LossOrigins, Progress
from transforms.origins.loss_table import origins_of_files
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions
from transforms.scheme.sources import recorded_scheme

_MOST_BYTES = 1 << 26
"""Largest float model that is measured layer by layer, which takes several copies of it in memory."""


@dataclass(frozen=True)
class LossSection:
    """Where the loss begins: the ``origins``, None where they are unknown; a section, and lines."""

    origins: LossOrigins | None
    html: str
    lines: list[str]


def loss_section(
    float_path: Path,
    quantized_path: Path,
    data: FolderData,
    history_of: Callable[..., ModelHistory],
    progress: Progress,
) -> LossSection:
    """Find the layers in which the loss begins, and return the section on them.

    ``history_of``: ModelHistory with the fields that the caller knows: how calls name models and samples, and
    how they are written.
    """
    model = model_io.load(float_path)
    try:
        _refuse_too_large(model)
        _refuse_other_outputs(float_path, data.options)
        feeds = (feed for _, feed in data.samples(open_model(float_path, data.options).inputs))
        origins = origins_of_files(float_path, quantized_path, feeds, data.options, progress)
    except ValueError as error:
        why = f"Not told layer by layer: {error}"
        return LossSection(None, f'<section class="first"><p>{html.escape(why)}</p></section>', [why])
    history = _history(model, model_io.load(quantized_path), history_of)
    return LossSection(origins, origins_section(origins, history), [*lines(origins, history)])


def _refuse_too_large(model: gs.Graph) -> None:
    """Raise ValueError for a model on which the search takes too long."""
    if too_large(model) or total_bytes(source_files(model)) > _MOST_BYTES:
        raise ValueError(f"the float model has more than {_MOST_BYTES:,} bytes, or too many nodes")


def _refuse_other_outputs(path: Path, run: RunOptions) -> None:
    """Raise ValueError for a model whose outputs cannot be compared."""
    for output in open_model(path, run).session.get_outputs():
        if not output.type.startswith("tensor("):
            raise ValueError(f"output '{output.name}' is not a tensor")


def _history(model: gs.Graph, quantized: gs.Graph, history_of: Callable[..., ModelHistory]) -> ModelHistory:
    """Return how the quantized model was made, which decides which commands can be proposed."""
    return history_of(
        metadata=info_of(quantized).metadata,
        names={label_of(node) for node in walk.nodes(model)},
        tensors=set(walk.tensors(model)),
        scheme=recorded_scheme(quantized),
        size=total_bytes(source_files(quantized)),
    )

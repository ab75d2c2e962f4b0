"""Quantize a float graph in one call, from the loaded graph to the graph to save."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.calibrate.calibration_data import CalibrationData
from transforms.graph import walk
from transforms.pipelines.in_memory import IN_MEMORY
from transforms.pipelines.options import Options
from transforms.pipelines.record import JobRecord
from transforms.pipelines.steps import run
from transforms.pipelines.work import Work
from transforms.plan.tensor_grids import FixedGrids
from transforms.run.events import SILENT, Events
from transforms.scheme import Scheme
from transforms.scheme.sources import scheme_of


def quantize_graph(
    graph: gs.Graph,
    scheme: Scheme | str,
    data: CalibrationData | None = None,
    *,
    events: Events = SILENT,
    keep_grids: bool = False,
    fixed: FixedGrids | None = None,
) -> JobRecord:
    """Quantize a float graph in place, by a scheme or the preset of a name; return the record of it.

    The steps are those of ``IN_MEMORY``.

    ``events`` receives progress. ``keep_grids`` keeps the grids of tensors in the record, for which weights
    are read once more. ``fixed``: grids of tensors, with which 'auto' keys are set by rule, not by search.

    A scheme that asks for fine-tuning is refused: see
    :func:`transforms.finetune.finetune_model.finetune_model`. So is one that asks for mixed precision: see
    :func:`transforms.precision.mix.mix_precision`.

    Raises ModelError for a model that is quantized already, ValueError for unknown names, formats that a
    tensor cannot have, NaN in weights, and data that are missing or do not fit; OSError if data cannot be
    read. On error the graph is left in an undefined state.
    """
    walk.check_graph(graph)
    scheme = scheme_of(scheme)
    record = JobRecord(grids=[] if keep_grids else None)
    options = Options(fixed=fixed or FixedGrids())
    work = Work(graph, scheme, data, options=options, events=events, record=record)
    return run(work, IN_MEMORY).record

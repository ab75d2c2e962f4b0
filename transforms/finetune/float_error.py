"""The error of the float outputs of a quantized model, as one number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.all_codes.recorded_shifts import shifts_within
from transforms.finetune.held_out import relative
from transforms.judge.judge import Judge
from transforms.model.copy_graph import copy_graph
from transforms.runtime.session import RunOptions


def float_error(
    float_graph: gs.Graph, quantized_graph: gs.Graph, feeds: Sequence[Feed], run: RunOptions | None = None
) -> float | None:
    """Return the mean over float outputs of squared error by power; None without such an output.

    One whose rows numbers choose counts as what is before that. It may be infinite.
    """
    judge = Judge(float_graph, feeds, run)
    if not judge.reference.outputs:
        return None
    found = judge.errors_of(copy_graph(quantized_graph), shifts=shifts_within(quantized_graph))
    return relative(found) if np.isfinite(found.signal).all() else None

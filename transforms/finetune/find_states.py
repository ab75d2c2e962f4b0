"""Find the inputs of a model that are states computed by the model itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Feed
from transforms.graph.paired_names import belong_together
from transforms.run.instrumented_model import InstrumentedModel, float_outputs
from transforms.run.run_each import with_fixed_threads
from transforms.runtime.session import RunOptions

_LOOKED_AT = 32  # samples

_LARGEST_DIFFERENCE = 0.05
"""Largest relative difference between the magnitudes of a state as fed and as returned."""


def find_states(graph: gs.Graph, feeds: Sequence[Feed], options: RunOptions | None = None) -> dict[str, str]:
    """Return the outputs that feed inputs of the next sample, by input; empty if that is not clear.

    A state and its output have the same type and shape in each sample, and either names that belong together
    (``h`` and ``h_out``, ``in_state`` and ``out_state``) or elements of similar magnitude over the samples.
    An input that changes differently from its output is a signal. A model whose inputs would all be states
    has none.
    """
    outputs = float_outputs(graph)
    inputs = [str(tensor.name) for tensor in graph.inputs]
    fixed = [name for name in inputs if _is_fixed(feeds, name)]
    if len(feeds) < 2 or len(inputs) < 2 or not fixed or not outputs:
        return {}
    model = InstrumentedModel(graph, outputs, with_fixed_threads(options))
    few = feeds[:_LOOKED_AT]
    runs = [model.run(few[0])]
    pairs = [(fed, back) for fed in fixed for back in outputs if few[0][fed].shape == runs[0][back].shape]
    if not pairs:  # true of most models, which need not run on more samples
        return {}
    runs += [model.run(feed) for feed in few[1:]]
    differences = {
        (fed, back): _difference(
            [feed[fed] for feed in few], [outputs_of_run[back] for outputs_of_run in runs]
        )
        for fed, back in pairs
    }
    alike = {pair: value for pair, value in differences.items() if value is not None}
    named = {
        pair: value
        for pair, value in alike.items()
        if belong_together(*pair) and (value < _LARGEST_DIFFERENCE or not _changes(few, pair[0]))
    }
    alike = {pair: value for pair, value in alike.items() if value < _LARGEST_DIFFERENCE}
    states = _matched(named) or _matched(alike)
    return states if len(states) < len(inputs) else {}


def _is_fixed(feeds: Sequence[Feed], name: str) -> bool:
    """Return whether an input is float32 with a fixed shape of several elements in all samples."""
    shapes = {np.shape(feed[name]) for feed in feeds if name in feed}
    return len(shapes) == 1 and all(feed[name].dtype == np.float32 for feed in feeds if name in feed)


def _changes(feeds: Sequence[Feed], name: str) -> bool:
    """Return whether the values of an input differ between samples, unlike initial states."""
    return any(not np.array_equal(feed[name], feeds[0][name]) for feed in feeds)


def _difference(fed: Sequence[AnyArray], made: Sequence[AnyArray]) -> float | None:
    """Return the relative difference of element magnitudes over samples; None if shapes differ."""
    if any(one.shape != other.shape for one, other in zip(fed, made, strict=True)):
        return None
    sizes = [np.sqrt(np.mean(np.square(np.asarray(each, np.float64)), 0)) for each in (fed, made)]
    total = max(float(np.square(one).sum()) for one in sizes)
    return float(np.square(sizes[0] - sizes[1]).sum()) / total if total else 0.0


def _matched(pairs: Mapping[tuple[str, str], float]) -> dict[str, str]:
    """Return the pairs, the closest first, with each input and output once."""
    matched: dict[str, str] = {}
    for fed, back in sorted(pairs, key=lambda pair: (pairs[pair], pair)):
        if fed not in matched and back not in matched.values():
            matched[fed] = back
    return matched

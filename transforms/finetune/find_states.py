"""Which inputs of a model are states that it makes itself."""

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
"""Of the magnitudes of a state as it is fed and as it comes back, as a share of them."""


def find_states(graph: gs.Graph, feeds: Sequence[Feed], options: RunOptions | None = None) -> dict[str, str]:
    """Return the outputs, by input, that a float model makes for the next sample; none if that is not clear.

    A state and its output are of one type and shape in each sample, and have names that belong together
    (``h`` and ``h_out``, ``in_state`` and ``out_state``) or else elements of equal magnitude over the
    samples. An input whose numbers change, and not as those of its output do, is a signal. A model all of
    whose inputs would be states has none.
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
    if not pairs:  # as of most models, which need not run on more samples
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
    """Return whether an input is of float32 and one shape, of more than one number, in all samples."""
    shapes = {np.shape(feed[name]) for feed in feeds if name in feed}
    return len(shapes) == 1 and all(feed[name].dtype == np.float32 for feed in feeds if name in feed)


def _changes(feeds: Sequence[Feed], name: str) -> bool:
    """Return whether the numbers of an input are others in some samples, unlike those of first steps."""
    return any(not np.array_equal(feed[name], feeds[0][name]) for feed in feeds)


def _difference(fed: Sequence[AnyArray], made: Sequence[AnyArray]) -> float | None:
    """Return the difference of magnitudes of elements over samples; None if shapes differ."""
    if any(one.shape != other.shape for one, other in zip(fed, made, strict=True)):
        return None
    sizes = [np.sqrt(np.mean(np.square(np.asarray(each, np.float64)), 0)) for each in (fed, made)]
    total = max(float(np.square(one).sum()) for one in sizes)
    return float(np.square(sizes[0] - sizes[1]).sum()) / total if total else 0.0


def _matched(pairs: Mapping[tuple[str, str], float]) -> dict[str, str]:
    """Return the pairs, the closest first, each input and output once."""
    found: dict[str, str] = {}
    for fed, back in sorted(pairs, key=lambda pair: (pairs[pair], pair)):
        if fed not in found and back not in found.values():
            found[fed] = back
    return found

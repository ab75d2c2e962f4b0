"""Errors of the outputs of a quantized model against the float model, sample by sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import AnyArray, Feed, Float64Array
from ops.metrics import sums_of_numbers
from transforms.all_codes.recorded_shifts import shifts_within
from transforms.graph import walk
from transforms.graph.number_shapes import judged_tensors
from transforms.run.instrumented_model import InstrumentedModel
from transforms.run.kept_arrays import KeptArrays
from transforms.run.run_each import run_each, with_bounded_memory, with_fixed_threads
from transforms.runtime.session import RunOptions

Value = NDArray[np.generic] | list[NDArray[np.generic]] | None
"""What a model makes: an array, a sequence of them, or nothing if that is optional."""

View = tuple[str, bool]
"""An output by its name, and whether it is what a final Softmax is made of that is meant."""

Found = dict[View, Value]

_PASSED = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Cast", "Clip"})
_SPREAD = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Identity", "Expand"})
_SOFTMAX = frozenset({"Softmax", "LogSoftmax"})


@dataclass(frozen=True)
class Errors:
    """Errors [S, O] of O outputs on S samples, and the ``powers`` [S, O] of the float outputs.

    For float outputs they are sums of squares, for others the numbers of elements that differ, and of all.
    ``own``: the errors without those of copies of the samples, if there are any. ``made``: those of the
    outputs as the model makes them, if some are measured before a final Softmax.
    """

    errors: Float64Array
    powers: Float64Array
    own: Float64Array | None = None
    made: Float64Array | None = None

    @property
    def without_copies(self) -> Errors:
        """The errors of the samples alone."""
        return self if self.own is None else Errors(self.own, self.powers)

    @property
    def as_made(self) -> Errors:
        """The errors of the outputs as the model makes them."""
        return self if self.made is None else Errors(self.made, self.powers)

    @property
    def relative(self) -> float:
        """The mean over outputs of error divided by power, both over all samples; may be infinite."""
        errors, powers = self.errors.sum(0), self.powers.sum(0)
        with np.errstate(all="ignore"):
            mean = float(np.where(errors == 0, 0.0, errors / powers).mean())
        return mean if np.isfinite(mean) else np.inf

    def of(self, samples: NDArray[np.bool_]) -> Errors:
        """Return the errors on some of the samples."""
        return Errors(self.errors[samples], self.powers[samples])


class OutputError:
    """The error of models on some samples, against the outputs of the float model.

    An output after a final Softmax is measured before it: probabilities hide errors if one of them is near 1,
    and the few samples without such a one would decide everything. It is measured as it is beside that.
    ``names`` are those of the outputs; of one whose number of rows depends on numbers, those of the tensors
    that it is made of (:mod:`transforms.graph.number_shapes`), as ``judged`` says.
    """

    def __init__(
        self,
        float_graph: gs.Graph,
        feeds: Sequence[Feed],
        output_index: int | None = None,
        options: RunOptions | None = None,
        *,
        samples: int | None = None,
        known: gs.Graph | None = None,
    ) -> None:
        """Run the float model; ValueError for an output index out of range.

        ``known``: a quantized graph, whose tensors the models to come have, too.

        Feeds after as many as there are ``samples`` are copies of all, in the same order, whose errors are
        added to those of the samples.
        """
        self._feeds, self._options = feeds, options
        self._samples = len(feeds) if samples is None else samples
        names = [tensor.name for tensor in float_graph.outputs]
        if output_index is not None and not 0 <= output_index < len(names):
            raise ValueError(
                f"output {output_index} is not there, the model has {len(names)}, the first is 0"
            )
        chosen = names if output_index is None else [names[output_index]]
        tensors = None if known is None else walk.tensors(known)
        judged = judged_tensors(float_graph, tensors)
        self.judged = {name: judged[name] for name in chosen}
        self.names = list(dict.fromkeys(chain(*self.judged.values()))) or chosen
        self._float, self._scored = float_graph, set(_scores(float_graph))
        self._wanted: dict[frozenset[str], list[Found]] = {}
        self._of_float(frozenset(self._scored))

    def each(self, graph: gs.Graph) -> Errors:
        """Return the errors of a model with the same inputs and outputs."""
        return self.opened(graph)({})

    def opened(
        self, graph: gs.Graph, samples: Sequence[int] | None = None
    ) -> Callable[[Mapping[str, AnyArray]], Errors]:
        """Return the errors of a model on all or some samples for what is fed to more inputs that it has."""
        own = range(self._samples) if samples is None else samples
        every = range(0, len(self._feeds), max(self._samples, 1))
        chosen = [start + sample for start in every for sample in own]
        scored = frozenset(self._scored & _scores(graph).keys())
        floats, run = self._of_float(scored), self._running(graph, scored)
        views = self._views(scored)
        measured = [views.index((name, name in scored)) for name in self.names]
        made = [views.index((name, False)) for name in self.names]

        def _errors(more: Mapping[str, AnyArray]) -> Errors:
            pairs = np.asarray(
                [
                    [compare(floats[i][view], found[view]) for view in views]
                    for i, found in zip(chosen, run({**self._feeds[i], **more} for i in chosen), strict=True)
                ],
                np.float64,
            ).reshape(len(every), len(own), len(views), 2)
            errors, powers = np.moveaxis(pairs.sum(0), -1, 0)
            first = pairs[0][:, measured, 0] if len(every) > 1 else None
            shown = errors[:, made] if scored else None
            return Errors(errors[:, measured], powers[:, measured], first, shown)

        return _errors

    def _of_float(self, scored: frozenset[str]) -> list[Found]:
        if scored not in self._wanted:
            kept, running = KeptArrays(), self._running(self._float, scored)
            self._wanted[scored] = [kept.keep(found) for found in running(self._feeds)]
        return self._wanted[scored]

    def _views(self, scored: frozenset[str]) -> list[View]:
        """Return what is compared: each output as it is made, and ``scored`` ones before their Softmax."""
        return [(name, False) for name in self.names] + [
            (name, True) for name in self.names if name in scored
        ]

    def _running(
        self, graph: gs.Graph, scored: frozenset[str]
    ) -> Callable[[Iterable[Feed]], Iterator[Found]]:
        """Return what yields the tensors that are compared."""
        scores = _scores(graph)
        places = {(name, before): scores[name] if before else name for name, before in self._views(scored)}
        shown = [*(tensor.name for tensor in graph.outputs), *places.values()]
        options = with_bounded_memory(with_fixed_threads(self._options), self._feeds)
        model = InstrumentedModel(graph, shown, options)
        inner = set(self.names).difference(tensor.name for tensor in graph.outputs)
        back = {name: np.float32(shift) for name, shift in shifts_within(graph).items() if name in inner}

        def _run(feeds: Iterable[Feed]) -> Iterator[Found]:
            for found in run_each(partial(model.run, shown=places.values()), feeds, self._options):
                found |= {name: found[name] + shift for name, shift in back.items()}
                yield {view: found[place] for view, place in places.items()}

        return _run


def _scores(graph: gs.Graph) -> dict[str, str]:
    """Return the input of a final Softmax by output; nodes after it may move numbers and round them."""
    found = {}
    for output in graph.outputs:
        node = walk.producer(output)
        while node is not None and (node.op in _PASSED or "quantize" in node.op.lower()):
            node = walk.producer(node.inputs[0])
        scores = None if node is None else _scores_of(node)
        if scores is not None:
            found[output.name] = scores.name
    return found


def _scores_of(node: gs.Node) -> gs.Tensor | None:
    """Return the input of a Softmax, also one that is written as Exp divided by its sum; None for others."""
    if node.op in _SOFTMAX:
        return node.inputs[0]
    exponential = walk.producer(node.inputs[0]) if node.op == "Div" else None
    if exponential is None or exponential.op != "Exp":
        return None
    total = walk.producer(node.inputs[1])
    while total is not None and total.op in _SPREAD:
        total = walk.producer(total.inputs[0])
    if total is None or total.op != "ReduceSum" or total.inputs[0] is not exponential.outputs[0]:
        return None
    return exponential.inputs[0]


def compare(wanted: Value, found: Value) -> tuple[float, float]:
    """Return error and power of an output, of a sequence those of its tensors.

    NaN and infinities that the float model makes are no numbers and count for neither.
    """
    if isinstance(wanted, list) and isinstance(found, list):
        if len(wanted) != len(found):
            return np.inf, 1.0
        parts = np.array([compare(*pair) for pair in zip(wanted, found, strict=True)]).reshape(-1, 2)
        return float(parts[:, 0].sum()), float(parts[:, 1].sum())
    if not (isinstance(wanted, np.ndarray) and isinstance(found, np.ndarray)):
        return (0.0, 0.0) if wanted is found is None else (np.inf, 1.0)
    if wanted.shape != found.shape:
        return np.inf, 1.0
    if wanted.dtype.kind != "f":
        return float((wanted != found).sum()), float(wanted.size)
    sums = sums_of_numbers(wanted, found)
    return sums.error_energy, sums.baseline_energy

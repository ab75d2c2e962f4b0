"""Fine-tuning a quantized model as a whole; its outputs on held-out samples never become worse."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from ops.formats import Format
from transforms.all_codes.share_shifts import on_all_codes, shift_alike
from transforms.all_codes.use_all_codes import count_added
from transforms.finetune.finetune_weights import Progress, finetune_weights
from transforms.finetune.judged_samples import JudgedSamples
from transforms.finetune.layer_choice import MOST_TRIALS
from transforms.finetune.options import FinetuneOptions
from transforms.finetune.output_error import Errors
from transforms.finetune.put_back import SomeLayers, keep_harmless, unlearn
from transforms.finetune.tune_scales import tune_scales
from transforms.finetune.tuned_layers import TunedLayers
from transforms.model.copy_graph import copy_graph
from transforms.run.workers import Workers
from transforms.runtime.product_threads import products_on_one_thread
from transforms.scheme.scheme_values import OFF, PADDED

_CLEAR = 1.0  # dB on held-out samples; with less, another way to tune may do better
_ENOUGH_LOST = 3  # models that became worse on probes or in a loop: no other one is fitted for that
_GUESSES = 2
"""Choices of layers that are tried with few samples: without those that lead to harmed outputs."""


@dataclass
class TunedModel:
    """The better model, the errors of its outputs on held-out samples before and after, and its layers.

    ``attempt`` names the attempt that was accepted, or is None if the model is unchanged. ``put_back`` are
    the numbers of layers that have their old weights again, for all together did not pass; ``blocked`` is the
    output that they harmed most, None if they harmed none. ``scales``: how many scales of activations changed
    after that; ``spread``: how many tensors use all codes of int8, which they did not before, and ``added``:
    how many Pads and Subs this took. ``notes``: on outputs that are not compared themselves.
    """

    graph: gs.Graph
    before: float
    after: float
    attempt: str | None
    walk: TunedLayers
    put_back: frozenset[int] = frozenset()
    blocked: str | None = None
    scales: int = 0
    spread: int = 0
    added: int = 0
    notes: Sequence[str] = ()


@products_on_one_thread()
def finetune_model(
    float_graph: gs.Graph,
    quantized_graph: gs.Graph,
    feeds: Sequence[Feed],
    options: FinetuneOptions | None = None,
    *,
    formats: Sequence[Format] = (),
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> TunedModel:
    """Return a quantized model with tuned weights and biases, or the same one unless that is better.

    ``auto`` lets int8 tensors use all codes first (:mod:`transforms.all_codes.share_shifts`). Weights are
    tuned with scales and exponents chosen anew; unless the outputs improve significantly
    (:mod:`transforms.finetune.acceptance`) and by 1 dB, with the present ones, and at last biases alone, if
    layers chose others. Of layers that together harm an output, those that do no harm are a model of their
    own; the best model is returned. A recurrent model is also judged with states of its own
    (:mod:`transforms.finetune.closed_loop`). Unless few held-out samples show clearly that the first is
    better, others with other samples held out are tuned, too, one after another until together they do, of
    few samples until each is held out once; ``auto`` does without learned roundings if outputs are better so.
    ``float_graph`` is the float model in the form that was quantized
    (:func:`transforms.finetune.float_reference.float_reference`), ``formats`` are those that it was quantized
    to, beyond those that the metadata of a file name. Neither graph is changed. ``workers``: as of
    :func:`transforms.finetune.finetune_weights.finetune_weights`.

    Raises ValueError if no layer can be tuned, and as
    :func:`transforms.finetune.finetune_weights.finetune_weights`.
    """
    _refuse(float_graph, quantized_graph)
    given = float_graph, quantized_graph
    judged = JudgedSamples(*given, feeds, options or FinetuneOptions())
    options = judged.options
    float_graph, spread = shift_alike(*given, formats), 0
    if options.algorithm == "auto" and options.rescale and options.all_codes != OFF:
        more = feeds if options.all_codes == PADDED else None
        pair = float_graph, quantized_graph
        float_graph, quantized_graph, spread = on_all_codes(*pair, formats, padded_for=more)
    best = _Best(given[1], (float_graph, quantized_graph), judged, formats)

    def _fit(chosen: FinetuneOptions) -> _Fitted:
        graph = copy_graph(quantized_graph)
        walked = finetune_weights(
            float_graph,
            graph,
            judged.fitted,
            chosen,
            formats=formats,
            model_error=partial(judged.error, graph, chosen.fold) if options.selective else None,
            workers=workers,
            progress=progress,
        )
        return _Fitted.of(graph, walked, judged)

    fitted: list[_Fitted] = []
    for attempt, chosen in _attempts(options):
        if len(fitted) > 1 and (chosen.weights or not judged.can_choose):
            continue  # what several models did not show, another one shows by chance
        if fitted and fitted[0].walked.are_those_of(chosen):
            continue  # it is that model
        fitted = [_fit(chosen)]
        while best.is_undecided(fitted):
            fitted += [_fit(dataclasses.replace(chosen, fold=len(fitted)))]
        if best.passes(fitted, attempt, chosen) and best.is_clear:
            break
    if options.algorithm == "auto" and options.rescale:
        best.tune_scales()
    if not spread:
        return best.model
    if best.model.attempt is None:
        without = dataclasses.replace(options, all_codes=OFF)
        return finetune_model(*given, feeds, without, formats=formats, workers=workers, progress=progress)
    added = count_added(quantized_graph) - count_added(given[1])
    return dataclasses.replace(best.model, spread=spread, added=added)


@dataclass(frozen=True)
class _Fitted:
    """A tuned model, its layers, and the errors of its outputs on all samples that are compared.

    ``lost``: the outputs that became worse with states of its own, or on probes.
    """

    graph: gs.Graph
    walked: TunedLayers
    errors: Errors
    lost: Sequence[str] = ()

    @classmethod
    def of(cls, graph: gs.Graph, walked: TunedLayers, judged: JudgedSamples) -> _Fitted:
        """Run a model on these samples."""
        errors = judged.each(graph)
        return cls(graph, walked, errors, judged.lost(graph, errors))


class _Best:
    """The best model so far, at first the given one; ``models``: those whose layers are tuned."""

    def __init__(
        self,
        given: gs.Graph,
        models: tuple[gs.Graph, gs.Graph],
        judged: JudgedSamples,
        formats: Sequence[Format],
    ) -> None:
        error = judged.before
        self.model = TunedModel(given, error, error, None, TunedLayers(), notes=judged.notes)
        self._models, self._judged, self._formats = models, judged, formats
        self._gain, self._tried, self._fold = 0.0, 0, 0
        self._kept: _Fitted | None = None

    @property
    def is_clear(self) -> bool:
        """Whether the best model gains so much that another way to tune need not be tried."""
        return self._gain >= _CLEAR

    def is_undecided(self, fitted: Sequence[_Fitted]) -> bool:
        """Return whether more samples have to be held out to tell if the first models are better."""
        judged, lost = self._judged, all(one.lost for one in fitted)
        if self._tried or len(fitted) == judged.folds or (lost and len(fitted) == _ENOUGH_LOST):
            return False
        return not (self._pass(fitted, clearly=True) or judged.is_hopeless([one.errors for one in fitted]))

    @property
    def _is_whole(self) -> bool:
        """Whether a model with all layers tuned has passed."""
        return self.model.attempt is not None and not self.model.put_back

    def passes(self, fitted: Sequence[_Fitted], attempt: str, options: FinetuneOptions) -> bool:
        """Return whether models with all layers tuned pass; if not, try some of their layers."""
        passes = self._pass(fitted)
        if passes:
            self._keep(fitted, attempt)
            if len(fitted) == 1 and fitted[0].walked.unlearned:
                self._challenge(fitted[0].walked, attempt, options)
        self._tried += 1
        if not passes and not self._is_whole:
            self._put_back(fitted, attempt, options)
        for one in fitted:
            one.walked.matched, one.walked.unlearned = [], {}
        return passes

    def _challenge(self, walked: TunedLayers, attempt: str, options: FinetuneOptions) -> None:
        """Take a model without learned roundings if it passes, too, and its outputs gain more."""
        changed = sorted(walked.changed)
        some = SomeLayers(self._models, [walked.matched], changed, self._formats, options.op_types)
        other = _Fitted.of(*unlearn(some, walked), self._judged)
        if self._pass([other]):
            self._keep([other], attempt)

    def tune_scales(self) -> None:
        """Take other scales of activations for an accepted model if held-out samples confirm them."""
        if self._kept is None:
            return
        graph, changed = tune_scales(self.model.graph, partial(self._judged.opened, fold=self._fold))
        if not changed:
            return
        before, after = self._kept.errors, self._judged.each(graph)
        lost = self._judged.lost(graph, after, self.model.graph)
        if not lost and self._judged.improves(before, after, self._fold):
            held_out = self._judged.of_held_out(after, self._fold)[1]
            self.model = dataclasses.replace(self.model, graph=graph, after=held_out, scales=changed)

    def _pass(self, fitted: Sequence[_Fitted], *, clearly: bool = False) -> bool:
        """Return whether models, fold by fold, are better, and one of them with states of its own, too."""
        if all(one.lost for one in fitted):
            return False
        return self._judged.passes([one.errors for one in fitted], self._tried, clearly=clearly)

    def _harmed(self, fitted: Sequence[_Fitted]) -> list[str]:
        """Return the outputs that became worse, those first that did so on single samples."""
        lost = [name for one in fitted for name in one.lost] if all(one.lost for one in fitted) else []
        return list(dict.fromkeys([*self._judged.harmed([one.errors for one in fitted]), *lost]))

    def _keep(self, fitted: Sequence[_Fitted], attempt: str) -> bool:
        """Take the best of models that pass if they are better than the best so far; return whether."""
        gain = self._judged.gain([one.errors for one in fitted])
        if gain <= self._gain and self.model.attempt is not None:
            return False
        left = {i: one.errors for i, one in enumerate(fitted) if not one.lost}
        self._fold = fold = self._judged.best(left)
        self._kept = best = fitted[fold]
        before, after = self._judged.of_held_out(best.errors, fold)
        made = best.graph, before, after, attempt, best.walked
        self.model, self._gain = TunedModel(*made, notes=self.model.notes), gain
        return True

    def _put_back(self, fitted: Sequence[_Fitted], attempt: str, options: FinetuneOptions) -> None:
        """Try models with some of the layers tuned, those that do no harm."""
        harmed = self._harmed(fitted)
        blocked = harmed[0] if harmed else None
        if self.model.attempt is None:
            self.model = dataclasses.replace(self.model, walk=fitted[0].walked, blocked=blocked)
        if not harmed:
            return  # some layers would be chosen for a gain that all together do not show
        if self._judged.can_choose:
            most = _GUESSES if fitted[0].lost else MOST_TRIALS  # a trial runs through a loop, too
            fitted = fitted[:1]
        elif len(fitted) > 1 and not self._judged.lose_by_probes([one.errors for one in fitted]):
            most = _GUESSES
        else:
            return
        changed = sorted(frozenset[int]().union(*(one.walked.changed for one in fitted)))
        if not changed:
            return
        matched = [one.walked.matched for one in fitted]
        some = SomeLayers(self._models, matched, changed, self._formats, options.op_types)
        graphs, kept = keep_harmless(some, frozenset(harmed), self._judged.harmless_gain, most)
        if len(kept) in (0, len(changed)):
            return  # the one or the other model is known
        pairs = zip(graphs, fitted, strict=True)
        found = [_Fitted.of(graph, one.walked, self._judged) for graph, one in pairs]
        self._tried, passes = self._tried + 1, self._pass(found)
        if passes and self._keep(found, attempt):
            self.model.put_back, self.model.blocked = frozenset(changed) - kept, blocked


def _attempts(options: FinetuneOptions) -> Iterator[tuple[str, FinetuneOptions]]:
    if options.weights and options.rescale:
        yield "weights, biases and scales", options
    if options.weights:
        yield "weights and biases", dataclasses.replace(options, rescale=False)
    yield "biases", dataclasses.replace(options, weights=False)


def _refuse(float_graph: gs.Graph, quantized_graph: gs.Graph) -> None:
    for what in ("inputs", "outputs"):
        one, two = ({t.name for t in getattr(g, what)} for g in (float_graph, quantized_graph))
        if one != two:
            raise ValueError(f"the models have different {what}: '{min(one ^ two)}' is in one of them only")

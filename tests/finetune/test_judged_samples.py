"""Few held-out samples tell little: then models are fitted with others held out, too.

Oracle: errors that are written down for each model and sample; a model that does not see a sample judges it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from numpy.typing import NDArray

from ops.array_types import Feed
from tests.helpers import tunable
from transforms.finetune import judged_samples
from transforms.finetune.acceptance import loses
from transforms.finetune.finetune_model import TunedModel, finetune_model
from transforms.finetune.judged_samples import JudgedSamples
from transforms.finetune.options import FinetuneOptions, LayerwiseOptions, is_held_out
from transforms.finetune.output_error import Errors
from transforms.finetune.tune_layer import LayerSolution
from transforms.finetune.tuned_layers import LayerReport, TunedLayers

COUNT = 32
FOLDS = [
    np.array([is_held_out(i, COUNT, LayerwiseOptions(fold=fold)) for i in range(COUNT)]) for fold in range(3)
]
SCATTERED = np.array([0.5, 1.6, 0.6, 1.5, 0.55, 1.3])
"""Errors of held-out samples, of 1 before, that fall in the mean but not by more than their scatter."""


def test_each_fold_holds_out_other_samples() -> None:
    assert not np.any(np.sum(FOLDS, 0) > 1)
    assert [part.sum() for part in FOLDS] == [6, 6, 6]
    of_two = [[is_held_out(i, 2, LayerwiseOptions(fold=fold)) for i in range(2)] for fold in range(2)]
    assert of_two == [[False, True], [True, False]]


class _WrittenDown:
    """Stands for OutputError: errors of a graph by its name, in the order in which samples are judged."""

    names = ("y",)
    judged: ClassVar[dict[str, list[str]]] = {"y": ["y"]}
    found: dict[str, NDArray[np.float64]]

    def __init__(
        self, _: gs.Graph, feeds: Sequence[dict[str, NDArray[np.float32]]], *_more: object, **_named: object
    ) -> None:
        self._places = [int(feed["x"][0]) for feed in feeds]

    def each(self, graph: gs.Graph) -> Errors:
        errors = self.found.get(graph.name, np.ones(COUNT))[self._places][:, None]
        return Errors(errors, np.ones_like(errors))

    def opened(self, _: gs.Graph, samples: Sequence[int]) -> list[int]:
        """Return the samples that are asked for."""
        return [self._places[i] for i in samples]


def tuned(
    monkeypatch: pytest.MonkeyPatch,
    *by_fold: NDArray[np.float64],
    plain: NDArray[np.float64] | None = None,
    scaled: NDArray[np.float64] | None = None,
    judge: type[_WrittenDown] | None = None,
) -> tuple[TunedModel, list[str]]:
    """Return what becomes of a model whose tuned copies have errors by fold, and which were fitted.

    ``judge`` also knows errors on probes, of which there are none without it. ``plain``: errors of one
    without learned roundings, which the others have then.
    """
    fitted: list[str] = []

    def _tune(
        _: gs.Graph, graph: gs.Graph, _feeds: object, options: FinetuneOptions, **__: object
    ) -> TunedLayers:
        graph.name = "as it was"
        if options.weights and options.rescale:
            graph.name = f"fold {options.fold}"
            fitted.append(graph.name)
        report = LayerReport("a", "Conv", 1.0, 0.5, 1.0, "same scale", 0.0, best="same scale")
        nothing = LayerSolution("same scale", np.zeros((1, 1, 1)), np.zeros((1, 1)))
        return TunedLayers([report], unlearned={} if plain is None else {0: (nothing, report)})

    _WrittenDown.found = {f"fold {fold}": errors for fold, errors in enumerate(by_fold)}
    _WrittenDown.found |= {} if plain is None else {"plain": plain}
    monkeypatch.setattr(judged_samples, "OutputError", judge or _WrittenDown)
    if judge is None:
        _without_probes(monkeypatch)
    monkeypatch.setattr("transforms.finetune.finetune_model.finetune_weights", _tune)
    _WrittenDown.found |= {} if scaled is None else {"scaled": scaled}
    other = gs.Graph(name="scaled")
    monkeypatch.setattr(
        "transforms.finetune.finetune_model.tune_scales",
        lambda graph, _: (graph, 0) if scaled is None else (other, 1),
    )
    monkeypatch.setattr("transforms.finetune.finetune_model.keep_harmless", lambda *_: ([], frozenset()))
    monkeypatch.setattr(
        "transforms.finetune.finetune_model.unlearn", lambda _, walked: (gs.Graph(name="plain"), walked)
    )
    graph = gs.Graph(name="as it was")
    feeds = [{"x": np.array([i], np.float32)} for i in range(COUNT)]
    return finetune_model(gs.Graph(), graph, feeds), fitted


def errors(fold: int, unseen: object, seen: float = 0.6) -> NDArray[np.float64]:
    """Return the errors of a model on samples that it has not seen, and on the others."""
    found = np.full(COUNT, seen)
    found[FOLDS[fold]] = unseen
    return found


def test_a_gain_that_six_samples_leave_open_is_settled_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six held-out samples are not enough, nor are twelve; eighteen are, and the best model is kept."""
    by_fold = errors(0, SCATTERED), errors(1, SCATTERED), errors(2, 0.7, seen=0.5)
    done, fitted = tuned(monkeypatch, *by_fold)
    assert fitted == ["fold 0", "fold 1", "fold 2"] and done.attempt == "weights, biases and scales"
    assert done.graph.name == "fold 2"
    assert (done.before, done.after) == pytest.approx((1.0, 0.7))


def test_a_gain_has_to_be_clear_where_others_could_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """One standard error and a half of six samples: twelve show two of them, or nothing, or a loss."""
    unclear = np.array([0.3, 1.3, 0.7, 1.15, 0.35, 0.95])
    gains = (1 - unclear) / (1 + unclear)
    assert 1.2 < gains.mean() / (gains.std(ddof=1) / 6**0.5) < 2
    for unseen, kept, count in ((0.6, "fold 1", 2), (1.1, "as it was", 3)):
        by_fold = [errors(0, unclear), *(errors(fold, unseen, seen=0.5) for fold in (1, 2))]
        done, fitted = tuned(monkeypatch, *by_fold)
        assert fitted == [f"fold {fold}" for fold in range(count)] and done.graph.name == kept


def _without_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out probes, for which no errors are written down."""
    for made in ("noisy", "mosaics"):
        monkeypatch.setattr(judged_samples, made, lambda _: [])


class _WithCopies:
    """Stands for OutputError: errors of the samples, and of their copies, of graphs by name."""

    names = ("y",)
    judged: ClassVar[dict[str, list[str]]] = {"y": ["y"]}
    found: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]

    def __init__(self, _: gs.Graph, __: object, *_more: object, samples: int, **_named: object) -> None:
        self._count = samples

    def each(self, graph: gs.Graph) -> Errors:
        own, copies = self.found.get(graph.name, (np.ones(8), np.ones(8)))
        return Errors((own + 2 * copies)[:, None], np.ones((self._count, 1)), own[:, None])


@pytest.mark.parametrize(
    ("own", "passes"),
    [
        ([0.5, 1.6, 0.6, 1.5, 0.5, 1.6, 0.5, 1.1], False),
        ([0.5, 1.3, 0.6, 1.2, 0.6, 1.3, 0.6, 1.0], True),
        ([0.8] * 8, True),
    ],
)
def test_what_copies_gain_is_no_gain_of_samples(
    own: list[float], passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples gain 0.7 standard errors by themselves, or 1.3, or are sure; copies always gain."""
    monkeypatch.setattr(judged_samples, "OutputError", _WithCopies)
    _without_probes(monkeypatch)
    _WithCopies.found = {"tuned": (np.array(own), np.full(8, 0.3))}
    feeds = [{"x": np.array([i], np.float32)} for i in range(8)]
    judged = JudgedSamples(gs.Graph(), gs.Graph(), feeds, FinetuneOptions())
    fitted = [judged.each(gs.Graph(name="tuned"))] * judged.folds
    assert judged.folds == 5 and judged.gain(fitted) > 2
    assert judged.passes(fitted, 0) == passes


@pytest.mark.parametrize(
    ("unseen", "asked"),
    [
        ([1.2] * 8, 3),
        ([1.2, 1.2, 0.5, 0.9, 1.2, 1.2, 1.2, 1.2], 4),
        ([0.9, 1.2, 0.5, 1.1, 0.6, 1.1, 0.6, 1.1], 5),
    ],
)
def test_others_are_not_asked_where_half_of_few_samples_lose(
    unseen: list[float], asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five models hold out one or two of eight samples each; nor are biases tuned after several."""
    monkeypatch.setattr(judged_samples, "OutputError", _WithCopies)
    _without_probes(monkeypatch)
    _WithCopies.found = {"tuned": (np.array(unseen), np.array(unseen))}
    fitted = []

    def _tune(
        _: gs.Graph, graph: gs.Graph, _feeds: object, options: FinetuneOptions, **__: object
    ) -> TunedLayers:
        graph.name = "tuned"
        fitted.append((options.weights, options.fold))
        return TunedLayers([LayerReport("a", "Conv", 1.0, 0.5, 1.0, "same scale", 0.0)])

    monkeypatch.setattr("transforms.finetune.finetune_model.finetune_weights", _tune)
    monkeypatch.setattr("transforms.finetune.finetune_model.keep_harmless", lambda *_: ([], frozenset()))
    feeds = [{"x": np.array([i], np.float32)} for i in range(8)]
    finetune_model(gs.Graph(), gs.Graph(name="as it was"), feeds)
    assert fitted == [(True, fold) for fold in range(asked)]


@pytest.mark.parametrize(("worst", "passes"), [(0.5, True), (50.0, False)])
def test_outputs_as_they_are_made_have_no_larger_errors(
    worst: float, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores have half the error on each sample, and so have probabilities, but perhaps one of them."""
    halved, made = np.full((COUNT, 1), 0.5), np.full((COUNT, 1), 0.5)
    made[7] = worst
    found = {"": Errors(np.ones((COUNT, 1)), np.ones((COUNT, 1)), None, np.ones((COUNT, 1)))}
    found["tuned"] = Errors(halved, np.ones((COUNT, 1)), None, made)
    monkeypatch.setattr(_WrittenDown, "each", lambda _, graph: found[graph.name or ""])
    monkeypatch.setattr(judged_samples, "OutputError", _WrittenDown)
    feeds = [{"x": np.array([i], np.float32)} for i in range(COUNT)]
    judged = JudgedSamples(gs.Graph(), gs.Graph(name=""), feeds, FinetuneOptions())
    tuned = judged.each(gs.Graph(name="tuned"))
    assert judged.passes([tuned], 0) == passes
    assert judged.improves(judged.each(gs.Graph(name="")), tuned, 0) == passes


def test_scales_are_not_kept_where_outputs_as_they_are_made_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    """By less than their scatter: perhaps by chance, but a model without other scales is accepted already."""
    before, made = np.ones((COUNT, 1)), np.ones((COUNT, 1))
    made[::2], made[1::2] = 0.5, 1.6
    after = Errors(0.5 * before, before, None, made)
    monkeypatch.setattr(judged_samples, "OutputError", _WrittenDown)
    _WrittenDown.found = {}
    feeds = [{"x": np.array([i], np.float32)} for i in range(COUNT)]
    judged = JudgedSamples(gs.Graph(), gs.Graph(), feeds, FinetuneOptions())
    assert not loses(Errors(before, before), Errors(made, before), np.ones(COUNT, bool))
    assert not judged.improves(Errors(before, before, None, before), after, 0)
    assert judged.improves(Errors(before, before), Errors(0.5 * before, before), 0)


@pytest.mark.parametrize(("gained", "count", "passes"), [(0.6, 1, False), (0.6, 5, True), (0.3, 1, True)])
def test_a_gain_of_some_of_few_samples_has_to_be_clear(
    gained: float, count: int, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also that of biases alone, after weights: one or two samples are held out from them."""
    monkeypatch.setattr(judged_samples, "OutputError", _WithCopies)
    _without_probes(monkeypatch)
    scattered = gained * np.array([1.2, 1.2, 0.8, 1.5, 0.7, 1.4, 0.6, 1.0])
    _WithCopies.found = {"tuned": (scattered, scattered)}
    feeds = [{"x": np.array([i], np.float32)} for i in range(8)]
    judged = JudgedSamples(gs.Graph(), gs.Graph(), feeds, FinetuneOptions())
    assert judged.passes([judged.each(gs.Graph(name="tuned"))] * count, 0) == passes


def test_what_only_seen_samples_gain_is_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    by_fold = errors(0, SCATTERED), errors(1, 1.02, seen=0.3), errors(2, 1.02, seen=0.3)
    done, fitted = tuned(monkeypatch, *by_fold)
    assert fitted == ["fold 0", "fold 1", "fold 2"] and done.attempt is None


@pytest.mark.parametrize(
    ("lost", "kept", "count"), [((), 0, 1), ((0,), 1, 2), ((0, 1), 2, 3), ((0, 1, 2), None, 3)]
)
def test_a_model_that_is_worse_with_its_own_states_is_not_accepted(
    lost: tuple[int, ...], kept: int | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them halve the errors of single samples; in a loop some have 1.1 times the error."""
    names = {f"fold {fold}" for fold in lost}
    monkeypatch.setattr(
        JudgedSamples, "loop", lambda _, graph: np.array([[1.1 if graph.name in names else 0.9]])
    )
    by_fold = [errors(fold, 0.5, seen=0.5 - 0.01 * (2 - fold)) for fold in range(3)]
    done, fitted = tuned(monkeypatch, *by_fold)
    assert fitted == [f"fold {fold}" for fold in range(count)]
    assert done.graph.name == ("as it was" if kept is None else f"fold {kept}")


def _tuned_on_probes(
    monkeypatch: pytest.MonkeyPatch, found: Callable[[str, str], float]
) -> tuple[TunedModel, list[str]]:
    """Return what becomes of models that halve the errors of samples, 3 dB.

    ``found``: their errors on probes, of noise and of mosaics, where the original one has 1.
    """
    numbers = {"noisy": -1, "mosaics": -2}

    class _Probed(_WrittenDown):
        def each(self, graph: gs.Graph) -> Errors:
            made = [name for name, number in numbers.items() if self._places and self._places[0] == number]
            if not made:
                return super().each(graph)
            powers = np.ones((len(self._places), 1))
            return Errors(powers * (1.0 if graph.name == "as it was" else found(graph.name, *made)), powers)

    def _probe(feeds: Sequence[Feed], number: int) -> list[Feed]:
        return [{"x": feed["x"] * 0 + number} for feed in feeds]

    for made, number in numbers.items():
        monkeypatch.setattr(judged_samples, made, partial(_probe, number=number))
    return tuned(
        monkeypatch, *(errors(fold, 0.5, seen=0.5 - 0.01 * (2 - fold)) for fold in range(3)), judge=_Probed
    )


@pytest.mark.parametrize("probe", ["noisy", "mosaics"])
@pytest.mark.parametrize(
    ("worse", "kept", "count"), [((), 0, 1), ((0,), 1, 2), ((0, 1), 2, 3), ((0, 1, 2), None, 3)]
)
def test_a_model_that_is_worse_on_probes_is_not_accepted(
    probe: str, worse: tuple[int, ...], kept: int | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one kind they have 1.5 times the error, on the other the same as before."""
    names = {f"fold {fold}" for fold in worse}
    done, fitted = _tuned_on_probes(
        monkeypatch, lambda name, made: 1.0 if made != probe else 1.5 if name in names else 0.9
    )
    assert fitted == [f"fold {fold}" for fold in range(count)]
    assert done.graph.name == ("as it was" if kept is None else f"fold {kept}")


@pytest.mark.parametrize(("unseen", "best"), [(0.9, 0), (1.1, 1)])
def test_the_best_model_errs_no_more_on_the_samples_held_out_from_it(
    unseen: float, best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first gains most on all samples; if all err more on their own, it is the best again."""
    monkeypatch.setattr(judged_samples, "OutputError", _WrittenDown)
    _without_probes(monkeypatch)
    feeds = [{"x": np.array([i], np.float32)} for i in range(COUNT)]
    judged = JudgedSamples(gs.Graph(), gs.Graph(), feeds, FinetuneOptions())
    for first, second, wanted in ((unseen, 0.8, best), (1.1, 1.2, 0)):
        _WrittenDown.found = {"first": errors(0, first, seen=0.1), "second": errors(1, second)}
        by_fold = {i: judged.each(gs.Graph(name=name)) for i, name in enumerate(_WrittenDown.found)}
        assert judged.best(by_fold) == wanted


@pytest.mark.parametrize(("other", "is_kept"), [(0.7, True), (0.8, False)])
def test_probes_count_together(other: float, is_kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One kind errs 1.4 times as much, the other less; samples gain 3 dB, which count a twentieth."""
    done, _ = _tuned_on_probes(monkeypatch, lambda _, made: 1.4 if made == "mosaics" else other)
    gains = -10 * np.log10([1.4, other, 0.5])
    assert (0.475 * (gains[0] + gains[1]) + 0.05 * gains[2] > 0) == is_kept == (done.attempt is not None)


@pytest.mark.parametrize(("error", "scales"), [(0.9, 1), (1.1, 0)])
def test_scales_are_kept_if_they_do_no_harm_in_a_loop(
    error: float, scales: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        JudgedSamples, "loop", lambda _, graph: np.array([[error if graph.name == "scaled" else 1.0]])
    )
    done, _ = tuned(monkeypatch, errors(0, 0.5), scaled=np.full(COUNT, 0.3))
    assert done.scales == scales


@pytest.mark.parametrize("unseen", [0.5, 1.5])
def test_a_clear_first_answer_needs_no_other_model(unseen: float, monkeypatch: pytest.MonkeyPatch) -> None:
    done, fitted = tuned(monkeypatch, errors(0, unseen))
    assert fitted == ["fold 0"] and (done.attempt is not None) == (unseen < 1)


@pytest.mark.parametrize(("unseen", "chosen"), [(0.4, "plain"), (0.6, "fold 0")])
def test_outputs_decide_on_learned_roundings(
    unseen: float, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both models pass; the one whose held-out samples err less is kept, whatever the others do."""
    done, fitted = tuned(
        monkeypatch, errors(0, 0.5), plain=errors(0, unseen, seen=0.5 if unseen > 0.5 else 0.9)
    )
    assert fitted == ["fold 0"] and done.graph.name == chosen


@pytest.mark.parametrize(
    ("others", "scatter", "scales"), [(0.4, 0.0, 1), (0.6, 0.0, 0), (0.48, 0.05, 1), (0.488, 0.05, 0)]
)
def test_scales_are_kept_if_samples_that_did_not_choose_them_confirm_it(
    others: float, scatter: float, scales: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight samples choose them, with errors of almost none after that; all others decide.

    They scatter, so that the gain is 2.1 standard errors of its mean, or 1.4, which is often chance.
    """
    float_graph, quantized = gs.Graph(), gs.Graph(name="before")
    feeds = [{"x": np.array([i], np.float32)} for i in range(COUNT)]
    monkeypatch.setattr(judged_samples, "OutputError", _WrittenDown)
    _WrittenDown.found = {"tuned": np.full(COUNT, 0.5)}
    judged = JudgedSamples(float_graph, quantized, feeds, FinetuneOptions())
    few = list(judged.opened(quantized, 0))  # type: ignore[call-overload]
    assert len(few) == 8 and not FOLDS[0][few].any()
    scaled = np.full(COUNT, others)
    rest = np.setdiff1d(np.arange(COUNT), few)
    scaled[rest[::2]], scaled[rest[1::2]] = others + scatter, others - scatter
    scaled[few] = 0.01
    _WrittenDown.found["scaled"] = scaled
    gains = ((0.5 - scaled) / (0.5 + scaled))[rest]
    assert not scatter or 1 < gains.mean() * 24**0.5 / gains.std(ddof=1) < 2.5
    before, after = (judged.each(gs.Graph(name=name)) for name in ("tuned", "scaled"))
    assert judged.improves(before, after, 0) == bool(scales)


@pytest.mark.parametrize("count", [2, 3, 5, 8, 29, 79, 80, 200])
def test_blocks_are_of_neighbours(count: int) -> None:
    """Of few samples three models leave out each once; of many one leaves out the last fifth."""
    by_fold = [
        np.flatnonzero(
            [is_held_out(i, count, LayerwiseOptions(in_blocks=True, fold=fold)) for i in range(count)]
        )
        for fold in range(min(3, count))
    ]
    assert all(len(part) and np.ptp(part) == len(part) - 1 for part in by_fold)
    assert by_fold[0][-1] == count - 1
    together = np.concatenate(by_fold)
    assert len(set(together)) == len(together)
    assert len(together) == count if count < 80 else len(by_fold[0]) == count // 5


@pytest.mark.parametrize(("count", "folds"), [(2, 2), (5, 5), (29, 5), (30, 3), (79, 3), (80, 1)])
def test_of_many_samples_enough_are_held_out_from_one_model(count: int, folds: int) -> None:
    model = tunable.two_products()
    data = tunable.samples(model, count)
    float_graph, quantized = tunable.pair(model, "MX6", data)
    assert JudgedSamples(float_graph, quantized, data, FinetuneOptions()).folds == folds
    blocks = JudgedSamples(float_graph, quantized, data, FinetuneOptions(in_blocks=True))
    assert blocks.folds <= min(folds, 3)  # blocks of a third


@pytest.mark.parametrize("count", [8, 32])
def test_layers_are_fitted_to_few_images_of_which_some_have_bars(count: int) -> None:
    """Oracle: the images themselves, which are those that are judged."""
    net = tunable.conv_net()
    data = tunable.samples(net, count)
    judged = JudgedSamples(*tunable.pair(net, "A8W8", data), data, FinetuneOptions())
    same = [np.array_equal(one["x"], two["x"]) for one, two in zip(judged.fitted, data, strict=True)]
    assert same == [count == 32 or place % 2 == 1 for place in range(count)]

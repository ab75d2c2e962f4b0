"""Steps around the preparation of a float model: check the scheme, take fixed grids, and use the samples."""

from __future__ import annotations

from itertools import chain, islice

from transforms.calibrate.calibration_data import MissingDataError
from transforms.conversion.standard_form import note_mended
from transforms.graph.embeddings import logits_of
from transforms.judge.constants import SEARCHED_ON
from transforms.pipelines.work import Work
from transforms.plan.sampled_exceptions import (
    fed_masks,
    kept_in_float,
    masked_by,
    of_zeros,
    without_range,
    zero_inputs,
)
from transforms.run.mend_shapes import mend_shapes
from transforms.scheme.fitted_weights import FEW_BITS, rounds_8_bits
from transforms.scheme.scheme import AUTO, FLOAT32
from transforms.scheme.scheme_values import AVOID, IN_PLACE


def refuse_unfit(work: Work) -> None:
    """Raise ValueError for a scheme that needs other steps, or asks for fitting that is not possible.

    Weights of 8 bits of a language model are fitted if the scheme says 'auto'.
    """
    work.events.phase("preparing")
    if work.scheme.finetune:
        raise ValueError("the scheme asks for fine-tuning, which is a step of its own: finetune_model")
    if work.scheme.auto_mixed_precision:
        step = "transforms.precision.mix.mix_precision"
        raise ValueError(f"the scheme asks for mixed precision, which is a step of its own: {step}")
    if work.scheme.fit_weights is True:
        _refuse_fitting(work)
    elif _fits_language(work):
        work.asked = work.scheme = work.scheme.with_(fit_weights=True)
    if work.record.grids is not None and work.fits_weights:
        raise ValueError("keep_grids requires fit_weights = false here: it changes grids that are kept")


def follow_grids(work: Work) -> None:
    """With fixed or kept grids, set 'auto' keys by rule, not by the outputs."""
    if work.options.fixed:
        corrects = work.scheme.correct_biases
        corrected = corrects is True or (work.data is not None and corrects is not False)
        work.asked = work.scheme = work.scheme.by_rule().with_(correct_biases=corrected)
    if work.scheme.saturation == AVOID:
        work.asked = work.scheme = work.scheme.with_(saturation=IN_PLACE)  # grids in files are per channel


def give_grids(work: Work) -> None:
    """Hand the fixed grids to the plan."""
    work.named.fixed = work.options.fixed


def mend_by_samples(work: Work) -> None:
    """Correct declared shapes that the samples contradict."""
    assert work.data is not None, "entered with samples"
    work.data = work.data.repeatable(work.graph)
    mend_shapes(work.graph, (feed for _, feed in work.data.feeds(work.graph)), work.data.run)
    note_mended(work.graph, work.record.notes)


def keep_exceptions(work: Work) -> None:
    """Keep tensors in float whose range would come from masks in the samples, or from zeros alone."""
    assert work.data is not None, "entered with samples"
    samples = work.data.feeds(work.graph)
    masks = fed_masks(work.graph, (feed for _, feed in islice(samples, SEARCHED_ON)))
    zeros = zero_inputs(work.graph, (feed for _, feed in samples))
    if not masks and not zeros:
        return
    plan = work.plan()
    exceptions = {"masks in the samples": masked_by(plan, masks), of_zeros(zeros): without_range(plan, zeros)}
    work.record.notes += [kept_in_float(names, why) for why, names in exceptions.items() if names]
    names = dict.fromkeys(chain(*exceptions.values()), FLOAT32)
    work.asked = work.scheme = work.scheme.with_(tensors={**names, **work.scheme.tensors})


def _fits_language(work: Work) -> bool:
    """Return whether to fit weights of 8 bits of a language model, whose activations have more bits.

    The KL divergence of the decoder in ``examples/text`` is 0.0009 nats in ``A16W8`` with it, 0.0014 without.
    """
    scheme, data = work.scheme, work.data
    is_open = scheme.fit_weights == AUTO and scheme.weight_method == AUTO and work.record.grids is None
    decides = data is not None and data.decides and not work.options.fixed
    has_activations = scheme.format(scheme.activation) is not None
    return is_open and decides and has_activations and rounds_8_bits(scheme) and bool(logits_of(work.graph))


def _refuse_fitting(work: Work) -> None:
    """Raise ValueError if weights cannot be fitted as the scheme asks."""
    if not work.scheme.fits_weights:
        weight = work.scheme.weight
        legal = f"fewer than {FEW_BITS} bits, or 8 beside activations of more"
        raise ValueError(f"fit_weights is true, no weight has {legal}: it is {weight}")
    if work.options.fixed:
        raise ValueError("fit_weights is true, and grids are given: one of them says what scales are")
    if work.data is None:
        raise MissingDataError("fit_weights is true, and calibration data to round weights by are missing")

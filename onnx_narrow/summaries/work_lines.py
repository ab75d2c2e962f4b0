"""The summary of finished work of ``quantize`` and ``mix_precision``, from its record.

Summaries of tuning, mixed precision and targets are imported when needed: imports take time that small jobs
notice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from onnx_narrow.summaries import quantize, running
from onnx_narrow.summaries.no_gain import no_gain_line
from onnx_narrow.summaries.precision import lossy_lines, placed_lines, preset_lines, reached_lines
from onnx_narrow.summaries.timing import beside_lines, for_cpu, what_helps
from onnx_narrow.summaries.words import Sizes, fixed_line
from transforms.files.spelling import as_option, spelled
from transforms.graph.embeddings import logits_of
from transforms.judge.decisions import Checked
from transforms.pipelines.for_runtime import FOR_RUNTIME, STORE
from transforms.pipelines.work import Work
from transforms.scheme.targets import ON_CPU, target

if TYPE_CHECKING:
    from transforms.finetune.tuned import TunedModel
    from transforms.precision.mix import MixedPrecision

_SLOW_HERE = ("int8",)
_FASTER = "ONNX Runtime's CPU provider runs int8 activations slowly: {} makes a faster model for it"
_RANDOM = "Warning: ranges come from random numbers; the result shows that the model runs, not its accuracy"


def lines(work: Work, sizes: Sizes, in_float: Counter[str]) -> Iterator[str]:
    """Yield the summary: steps in order, sizes, where and how fast the model runs, and its target.

    ``in_float``: nodes that compute in float, by operator.
    """
    record, scheme, options = work.record, work.scheme, work.options
    assert record.first is not None, "the model was tried out"
    entered = [name for name, _ in record.steps]
    for _, field, describe in dict.fromkeys(row for name in entered for row in _OF_STEPS if name in row[0]):
        if value := attrgetter(field)(record):
            yield from describe(value, work)
    yield from running.kept_lines(record.first)
    *first_lines, end = quantize.lines(work, sizes, in_float)
    yield from first_lines
    if scheme.target in ("", ON_CPU) and record.first.saturated is None:
        yield from running.saturated_line(record.first, work.graph)
    if not scheme.target and scheme.activation in _SLOW_HERE and record.first.time is None:
        yield _FASTER.format(for_cpu(scheme))
    is_placed, is_nbits = record.placed is not None, options.matmul_nbits
    advice = what_helps(work.asked, record.first.time, placed=is_placed, needs_blocks=is_nbits)
    yield from beside_lines(record.first.time, advice)
    yield end
    if scheme.target:
        from onnx_narrow.summaries.target import brief_lines

        yield from brief_lines(work.graph, target(scheme.target))
    yield from no_gain_line(work, sizes)


def _mixed(mixed: MixedPrecision, work: Work) -> Iterator[str]:
    from onnx_narrow.summaries import mixing

    return mixing.lines(mixed)


def _tuned(tuned: TunedModel, work: Work) -> Iterator[str]:
    from onnx_narrow.summaries import tuning

    return tuning.tuning_lines(tuned, work.record.tuned_on)


_STORING = ("keep_found", *(row.name for row in FOR_RUNTIME), STORE.name)
_OF_STEPS: Sequence[tuple[Sequence[str], str, Callable[[Any, Work], Iterable[str]]]] = (
    (("load",), "fixed", lambda fixed, _: [fixed_line(fixed)]),
    (("mix",), "mixed", _mixed),
    (("decide",), "decisions.lossy", lambda lossy, _: lossy_lines(lossy)),
    (("place",), "placed", lambda placed, _: placed_lines(placed)),
    (("beside_preset",), "beside", lambda beside, work: preset_lines(beside, _preset_beside(work))),
    (("reach", "gate"), "reached", lambda _, work: reached_lines(work)),
    (("tune", "tune_quantized"), "tuned", _tuned),
    (("keep_target", "check_target", "compare"), "rechecked", lambda lines, _: lines),
    (_STORING, "stored", lambda lines, _: lines),
)
"""The lines of each step, from a field of the record where it is set; once for a step that ran twice."""


def warnings(work: Work) -> Iterator[str]:
    """Yield a line for each defect of a model that is written nevertheless."""
    record, outputs = work.record, work.record.decisions.outputs
    assert record.first is not None, "the model was tried out"
    if record.is_compared and outputs and running.is_poor(outputs.error, outputs.others or 0.0):
        yield from _poor(outputs, work)
    if record.tuned:
        from onnx_narrow.summaries import tuning

        limit = tuning.broken_limit(record.tuned, work.data.memory_limit if work.data else None)
        yield from filter(None, (limit, *tuning.poor(record.tuned)))
    if work.scheme.target in ("", ON_CPU) and record.first.saturated is not None:
        yield from (f"Warning: {line}" for line in running.saturated_line(record.first, work.graph))
    judged = record.is_compared or record.tuned is not None
    yield from running.warnings(record.first, _config(work), judged=judged)
    if work.options.random_data and record.calibrated:
        yield _RANDOM
    if work.data is None and not record.is_compared and logits_of(work.graph):
        yield from running.unmeasured(record.tensors)


def useless(outputs: Checked, work: Work) -> str:
    """Return why a language model is unusable, with options that make a better one."""
    is_alone = work.scheme.format(work.scheme.activation) is None
    weight = str(work.scheme.weight) if is_alone else ""
    search, ways = quantize.searched(work.record.decisions), list(_more_bits(work))
    return running.useless(outputs, _config(work), weight=weight, search=search, ways=ways)


def _config(work: Work) -> str:
    """Return the preset whose formats are in use, empty for others."""
    return running.preset_of(str(work.options.recorded.get("config", "")), work.scheme)


def _poor(outputs: Checked, work: Work) -> Iterator[str]:
    """Yield a warning for each poor figure of the outputs, with options that improve it."""
    config, ways = _config(work), [*_other_layers(work), *_more_bits(work)]
    if work.options.tuning is None and not work.scheme.is_dynamic:  # weights of integer products cannot be
        ways += running.tuning_ways(config, fitted=work.record.decisions.fitted)
    if running.is_poor(outputs.error):
        figure = running.figure_of(outputs.error, of_tokens=outputs.of_tokens)
        yield running.poor(figure, outputs.where, config, ways)
    if outputs.others is not None and running.is_poor(outputs.others):
        figure = running.figure_of(outputs.others, what="other outputs")
        yield running.poor(figure, outputs.where, config, ways)


def _preset_beside(work: Work) -> str:
    """Return the preset that is compared with the target: the one of the call, or the target's own."""
    return str(work.options.recorded.get("config") or target(ON_CPU).preset)


def _other_layers(work: Work) -> Iterator[str]:
    """Yield other choices of layers that improve the outputs of a model for ONNX Runtime's CPU provider."""
    beside = work.record.beside
    if beside is not None and beside.is_far and not beside.is_taken:
        yield f"{as_option('config', _preset_beside(work))} is at {beside.without:.1f} dB"
    elif beside is None and work.asked.target == ON_CPU and work.options.goal is None and work.data:
        yield spelled(f"{{min_sqnr:{running.LEAST:.0f}}} leaves layers in float until it is reached")


def _more_bits(work: Work) -> Iterator[str]:
    """Yield options that give caches and embeddings more bits."""
    if work.options.kv_cache == "int4":
        yield spelled("{kv_cache:int8} has more bits for caches")
    elif work.options.kv_cache:
        yield spelled("without {kv_cache} caches stay float")
    if work.options.embeddings == "int4":
        yield spelled("{embeddings:int8} has more bits for embeddings")

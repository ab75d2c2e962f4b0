"""What the keywords of ``mix_precision`` ask for: a scheme, files, phases, and what is written of layers."""

from __future__ import annotations

from pathlib import Path

from onnx_narrow.api.result import Result
from onnx_narrow.api.scheme_needs import check_effect, refuse_beside
from onnx_narrow.api.schemes import SchemeWish, names_formats
from onnx_narrow.api.told import Told
from onnx_narrow.api.usage import files_in
from onnx_narrow.charts import pareto_plot, plot_file, sensitivity_chart
from onnx_narrow.options.mix_precision import TABLE_KEYS
from onnx_narrow.options.option import Given
from onnx_narrow.summaries import mixing
from transforms.files.output_file import write_text
from transforms.files.spelling import UsageError, spelled
from transforms.pipelines.mix import MixWork, mixed_of
from transforms.pipelines.steps import Steps, phases_of, run
from transforms.pipelines.work import Work
from transforms.scheme import Scheme
from transforms.scheme.targets import TARGETS


def check_keywords(given: Given) -> None:
    """Raise TypeError, ValueError or UsageError for keywords that are wrong, or do not go together."""
    runtimes = _runtimes(given)
    if runtimes[1:]:
        pair = " and ".join(spelled(f"{{target:{name}}}") for name in runtimes[:2])
        raise UsageError(f"{pair}: a model is made for one runtime")
    if not (given.get("config") or runtimes or names_formats(given.get("assignments", ()))):
        raise UsageError(spelled("{config} is needed: a preset or a scheme"))
    if callable(given.get("evaluate")) and (given.get("jobs", 1) != 1 or given.get("dask")):
        raise ValueError("evaluate is a callable, which other processes do not have: give 'FILE.py:FUNCTION'")


def _runtimes(given: Given) -> list[str]:
    """Return the runtimes among the targets, which may be formats, too."""
    return [name for name in given.get("target", ()) if name in TARGETS]


def wish_of(given: Given) -> SchemeWish:
    """Return what keywords say of the scheme and its table of mixed precision."""
    keys = {key: given[key] for key in TABLE_KEYS if key in given and key != "target"}
    if formats := [name for name in given.get("target", ()) if name not in TARGETS]:
        keys["target"] = formats
    return SchemeWish.of(given, given.get("config"), next(iter(_runtimes(given)), ""), keys)


def check_mixing(scheme: Scheme, wish: SchemeWish, given: Given) -> None:
    """Raise ValueError for a keyword that would do nothing with this scheme."""
    rule = scheme.auto_mixed_precision
    assert rule is not None, "the scheme has the table"
    if "labels" in given and rule.top1_target is None:
        raise ValueError(spelled("{labels} requires {top1_target}"))
    check_effect(scheme, wish, given)
    refuse_beside(scheme, given)


def check_files(given: Given, source: Path | None) -> None:
    """Raise before any work for a file that cannot be written."""
    files_in(given, "json", "csv", inputs=(source, given.get("labels")))
    for name in [name for name in ("chart", "plot") if name in given]:
        plot_file.check_plot(given[name], force=given.get("force", False))


def write_results(given: Given, work: Work) -> None:
    """Step: write what was found of layers."""
    mixed = mixed_of(work)
    if mixed is None or mixed.sensitivity is None:
        return
    found, chosen = mixed.sensitivity, mixed.assignment
    if "json" in given:
        write_text(given["json"], found.to_json())
    if "csv" in given:
        write_text(given["csv"], found.to_csv())
    if "chart" in given:
        sensitivity_chart.draw(found, given["chart"])
    if "plot" in given and chosen:
        elements = sum(one.weights + one.activations for one in mixed.candidates)
        pareto_plot.draw(chosen.steps, chosen.target, given["plot"], metric=mixed.metric, elements=elements)


def analyzed(work: MixWork, steps: Steps, told: Told) -> Result:
    """Take the steps, and return a result without a model."""
    told.expect(*phases_of(work, steps))
    run(work, steps, {"record.mixed": "mix"})
    mixed = mixed_of(work)
    assert mixed is not None, "the last step but one makes it"
    told.tell(mixing.lines(mixed))
    return Result(
        scheme=work.scheme,
        steps=work.record.steps,
        notes=told.lines,
        warnings=told.warnings,
        sensitivity=mixed.sensitivity,
    )

"""What the keywords of ``mix_precision`` ask for: a scheme, files, and the results for each layer."""

from __future__ import annotations

from pathlib import Path

from onnx_narrow.api.result import Result
from onnx_narrow.api.scheme_needs import check_effect, refuse_beside
from onnx_narrow.api.schemes import SchemeWish, names_formats
from onnx_narrow.api.told import Told
from onnx_narrow.api.usage import files_in
from onnx_narrow.charts import pareto_plot, plot_file, sensitivity_chart
from onnx_narrow.options.mix_precision import TABLE_KEYS
from onnx_narrow.options.option import Keywords
from onnx_narrow.summaries import mixing
from transforms.files.output_file import write_text
from transforms.files.spelling import UsageError, spelled
from transforms.pipelines.mix import MixWork, mixed_of
from transforms.pipelines.steps import Steps, phases_of, run
from transforms.pipelines.work import Work
from transforms.scheme import Scheme
from transforms.scheme.targets import TARGETS


def check_keywords(keywords: Keywords) -> None:
    """Raise TypeError, ValueError or UsageError for keywords that are wrong, or do not go together."""
    runtimes = _runtimes(keywords)
    if runtimes[1:]:
        pair = " and ".join(spelled(f"{{target:{name}}}") for name in runtimes[:2])
        raise UsageError(f"{pair}: a model is made for one runtime")
    if not (keywords.get("config") or runtimes or names_formats(keywords.get("assignments", ()))):
        raise UsageError(spelled("{config} is needed: a preset or a scheme"))
    if callable(keywords.get("evaluate")) and (keywords.get("jobs", 1) != 1 or keywords.get("dask")):
        raise ValueError("evaluate is a callable, which other processes do not have: give 'FILE.py:FUNCTION'")


def _runtimes(keywords: Keywords) -> list[str]:
    """Return the runtimes among the targets, which may be formats, too."""
    return [name for name in keywords.get("target", ()) if name in TARGETS]


def wish_of(keywords: Keywords) -> SchemeWish:
    """Return the scheme and the table of mixed precision that the keywords describe."""
    keys = {key: keywords[key] for key in TABLE_KEYS if key in keywords and key != "target"}
    if formats := [name for name in keywords.get("target", ()) if name not in TARGETS]:
        keys["target"] = formats
    return SchemeWish.of(keywords, keywords.get("config"), next(iter(_runtimes(keywords)), ""), keys)


def check_mixing(scheme: Scheme, wish: SchemeWish, keywords: Keywords) -> None:
    """Raise ValueError for a keyword that would have no effect with this scheme."""
    rule = scheme.auto_mixed_precision
    assert rule is not None, "the scheme has the table"
    if "labels" in keywords and rule.top1_target is None:
        raise ValueError(spelled("{labels} requires {top1_target}"))
    check_effect(scheme, wish, keywords)
    refuse_beside(scheme, keywords)


def check_files(keywords: Keywords, source: Path | None) -> None:
    """Raise before any work for a file that cannot be written."""
    files_in(keywords, "json", "csv", inputs=(source, keywords.get("labels")))
    for name in [name for name in ("chart", "plot") if name in keywords]:
        plot_file.check_plot(keywords[name], force=keywords.get("force", False))


def write_results(keywords: Keywords, work: Work) -> None:
    """Step: write the sensitivities of the layers and the chosen formats."""
    mixed = mixed_of(work)
    if mixed is None or mixed.sensitivity is None:
        return
    sensitivity, assignment = mixed.sensitivity, mixed.assignment
    if "json" in keywords:
        write_text(keywords["json"], sensitivity.to_json())
    if "csv" in keywords:
        write_text(keywords["csv"], sensitivity.to_csv())
    if "chart" in keywords:
        sensitivity_chart.draw(sensitivity, keywords["chart"])
    if "plot" in keywords and assignment:
        elements = sum(candidate.weights + candidate.activations for candidate in mixed.candidates)
        pareto_plot.draw(
            assignment.steps, assignment.target, keywords["plot"], metric=mixed.metric, elements=elements
        )


def analyzed(work: MixWork, steps: Steps, told: Told) -> Result:
    """Run the steps, and return a result without a model."""
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

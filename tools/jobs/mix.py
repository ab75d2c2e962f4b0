"""What ``tools.auto_mixed_precision`` does once its options are known to be right."""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.charts import pareto_plot, plot_file, sensitivity_chart
from tools.cli.command_line import same_file
from tools.cli.data_options import image_options, report_litter
from tools.cli.executors import threads_of, workers
from tools.cli.output_file import check_writable, write_text
from tools.cli.scheme_options import check_effect, parse_assignment
from tools.cli.user_code import check_code
from tools.jobs.mix_model import mix_model
from tools.jobs.tune_quantized import tune_mixed
from tools.jobs.write import write_quantized
from tools.summaries import mixing as mixing_summary
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.mix_precision.mix import MixedPrecision, MixingOptions
from transforms.model import provenance
from transforms.run.array_files import read_array
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme, read_scheme
from transforms.scheme.mixing_rule import TARGETS, MixingRule

_OPTIONS = {
    "target_op_types": "target_op_type",
    "include_nodes": "include_node",
    "exclude_nodes": "exclude_node",
}
"""Options that take the place of keys of the table, where they have another name."""

_TARGETS = frozenset(TARGETS)
_ALTERNATIVES = (
    *((_TARGETS - {key}, {key}) for key in sorted(_TARGETS)),
    ({"activation_target", "weight_target"}, {"target"}),
    ({"target"}, {"activation_target", "weight_target"}),
    ({"bytes_target"}, {"bits_target"}),
    ({"bits_target"}, {"bytes_target"}),
)
"""Keys of the table that an option for another key takes the place of, too: only one of them may be given."""


def mix_file(options: argparse.Namespace) -> None:
    """Quantize ``options.input`` in mixed precision, and print and write what was found.

    Raises ValueError or OSError; no model is written then.
    """
    scheme = scheme_in_use(options)
    _check_effect(scheme, options)
    check_code(scheme, options)
    output = _check_files(options)
    graph = model_io.load(options.input)
    mixing = MixingOptions(
        RunOptions(options.provider, threads_of(options.threads, options.jobs)),
        workers(options.jobs, options.dask),
        options.resume,
        None if options.labels is None else read_array(options.labels),
        options.analyze_only,
    )
    data = None
    if options.data is not None:
        report_litter(options.data)
        data = CalibrationData(
            options.data, image_options(options), options.limit, options.calibration_cache, mixing.run
        )
    mixed = mix_model(graph, scheme, data, mixing, "--data")
    _write_results(mixed, options)
    for line in mixing_summary.lines(mixed):
        print(line)
    if output is None:
        return
    result, used = mixed.graph, mixed.scheme
    if scheme.finetune:
        result, used = tune_mixed(mixed, scheme, "--data", options)
    entries = provenance.entries("quantize", {"config": options.config}, graph.source_sha256)
    entries[provenance.PREFIX + "scheme"] = used.to_toml()
    write_quantized(result, mixed.done, output, entries, options)


def scheme_in_use(options: argparse.Namespace) -> Scheme:
    """Return the scheme of ``--config`` with what the command line changes; ValueError naming the key."""
    scheme = read_scheme(options.config)
    for assignment in options.set:
        scheme = scheme.with_(**parse_assignment(assignment, scheme))
    given = {key: getattr(options, _OPTIONS.get(key, key)) for key in MixingRule.key_names()}
    said = {key: value for key, value in given.items() if value is not None}
    replaced = set().union(*(old for old, new in _ALTERNATIVES if new & said.keys()))
    before = scheme.auto_mixed_precision.said if scheme.auto_mixed_precision else {}
    kept = {key: value for key, value in before.items() if key not in replaced}
    if not kept and not said:
        raise ValueError(f"'{options.config}' has no table [auto_mixed_precision]: give --target FORMAT")
    return scheme.with_(auto_mixed_precision={**kept, **said})


def _check_effect(scheme: Scheme, options: argparse.Namespace) -> None:
    """Raise ValueError for an option that would do nothing with this scheme."""
    rule = scheme.auto_mixed_precision
    assert rule is not None, "the scheme has the table"
    if rule.sensitivity != "measured" and (options.jobs > 1 or options.dask):
        option = "dask" if options.dask else "jobs"
        raise ValueError(
            f"--{option} goes with --sensitivity measured: '{rule.sensitivity}' runs one model once"
        )
    if options.labels and rule.top1_target is None:
        raise ValueError("--labels goes with --top1-target")
    targets = [key for key in TARGETS if key in options.given]
    if targets and options.analyze_only and (rule.sensitivity != "measured" or rule.metric):
        words = "goes with --output, or --sensitivity measured without --metric"
        raise ValueError(f"{options.given[targets[0]]} {words}: that goes by the metric of the target")
    check_effect(scheme, options, "--data")


def _check_files(options: argparse.Namespace) -> Path | None:
    """Raise before any work what would stand in the way of writing."""
    reason = same_file(options, ("output", "json", "csv", "chart", "plot", "calibration_cache"))
    if reason:
        raise ValueError(reason)
    inputs = options.input, options.labels
    for path in filter(None, (options.json, options.csv)):
        check_writable(path, force=options.force, inputs=inputs)
    for path in filter(None, (options.chart, options.plot)):
        plot_file.check_plot(path, force=options.force)
    if options.calibration_cache:
        model_io.check_output(options.calibration_cache, force=True)
    if options.output is None:
        return None
    return model_io.check_output(
        options.output, options.input, force=options.force, external_data=options.save_as_external_data
    )


def _write_results(mixed: MixedPrecision, options: argparse.Namespace) -> None:
    found, chosen = mixed.sensitivity, mixed.assignment
    if found is None:
        return
    if options.json:
        write_text(options.json, found.to_json())
    if options.csv:
        write_text(options.csv, found.to_csv())
    if options.chart:
        sensitivity_chart.draw(found, options.chart)
    if options.plot and chosen:
        elements = sum(one.weights + one.activations for one in mixed.candidates)
        pareto_plot.draw(chosen.steps, chosen.target, options.plot, metric=mixed.metric, elements=elements)

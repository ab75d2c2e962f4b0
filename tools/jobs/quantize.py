"""What ``tools.quantize`` does once its options are known to be right."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import onnx_graphsurgeon as gs

from tools.cli.data_options import image_options, report_litter
from tools.cli.progress import Progress
from tools.cli.scheme_options import check_effect, parse_assignment
from tools.cli.user_code import check_code
from tools.jobs.mix_model import mix_model
from tools.jobs.tune_quantized import tune_mixed, tune_quantized
from tools.jobs.write import write_quantized
from tools.summaries import mixing
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData, MissingDataError
from transforms.finetune.float_reference import float_reference
from transforms.mix_precision.mix import MixingOptions
from transforms.model import provenance
from transforms.pipelines.quantize_graph import Quantized, quantize_graph
from transforms.run.feeds import random_feeds
from transforms.runtime.inputs import model_inputs
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme, read_scheme

_OVERRIDES = {
    "per_channel": "per_channel",
    "calibrate_method": "calibrate_method",
    "exclude_node": "exclude_nodes",
    "exclude_op": "exclude_op_types",
    "keep_weight_nodes": "keep_weight_nodes",
    "optimize": "optimize",
    "domain": "domain",
    "qdq_domain": "qdq_domain",
}
"""Keys of a scheme by the option that takes their place."""

_RANDOM = "Warning: ranges come from random numbers; the result shows that it runs, not how well"


def quantize_file(options: argparse.Namespace) -> None:
    """Quantize ``options.input`` to ``options.output`` and print what was done.

    Raises ValueError or OSError; nothing is written then.
    """
    scheme = scheme_in_use(options)
    if options.print_config:
        print(scheme.to_toml(), end="")
    if not options.input:
        return
    check_effect(scheme, options, "--calibration-data")
    check_code(scheme, options)
    output = model_io.check_output(
        options.output, options.input, force=options.force, external_data=options.save_as_external_data
    )
    if options.calibration_cache:
        model_io.check_output(options.calibration_cache, force=True)
    graph = model_io.load(options.input)
    data = _data(graph, options)
    mixed = None
    if scheme.auto_mixed_precision:
        mixed = mix_model(graph, scheme, data, MixingOptions(_run(options)), "--calibration-data")
        for line in mixing.lines(mixed):
            print(line)
        graph, done, used = mixed.graph, mixed.done, mixed.scheme
    else:
        done, used = _quantize(graph, scheme, data), scheme
    if not done.count:
        print(f"Nothing to do: no tensor of '{options.input}' can take a format of this scheme.")
        return
    recorded = {"config": options.config, "random_data": options.random_data}
    entries = provenance.entries("quantize", recorded, graph.source_sha256)
    if scheme.finetune and mixed:
        graph, used = tune_mixed(mixed, scheme, "--calibration-data", options)
    elif scheme.finetune:
        twin = float_reference(lambda: model_io.load(options.input), graph, scheme)
        graph = tune_quantized(graph, twin, scheme, "--calibration-data", options)
    entries[provenance.PREFIX + "scheme"] = used.to_toml()
    write_quantized(graph, done, output, entries, options)
    if options.random_data and done.calibrated:
        print(_RANDOM, file=sys.stderr)


def _quantize(graph: gs.Graph, scheme: Scheme, data: CalibrationData | None) -> Quantized:
    try:
        with Progress("calibrating", "sample") as bar:
            return quantize_graph(graph, scheme.with_(finetune=None), data, progress=bar.show)
    except MissingDataError as error:
        hint = "give --calibration-data DIR, or --random-data N to try things out"
        raise ValueError(f"{error}: {hint}") from error


def scheme_in_use(options: argparse.Namespace) -> Scheme:
    """Return the scheme of ``--config`` with what the command line changes; ValueError naming the key."""
    scheme = read_scheme(options.config)
    for assignment in options.set:
        scheme = scheme.with_(**parse_assignment(assignment, scheme))
    changes: dict[str, Any] = {}
    for option, key in _OVERRIDES.items():
        value = getattr(options, option)
        if value is not None:
            changes[key] = (*getattr(scheme, key), *value) if isinstance(value, list) else value
    return scheme.with_(**changes)


def _data(graph: gs.Graph, options: argparse.Namespace) -> CalibrationData | None:
    if options.random_data:
        feeds = random_feeds(model_inputs(graph), options.random_data)
        return CalibrationData(feeds, run=_run(options))
    if options.calibration_data is None:
        return None
    report_litter(options.calibration_data)
    return CalibrationData(
        options.calibration_data,
        image_options(options),
        options.limit,
        options.calibration_cache,
        _run(options),
    )


def _run(options: argparse.Namespace) -> RunOptions:
    return RunOptions(options.provider, options.threads)

"""Tuning what ``tools.quantize`` has just made, where its scheme says so."""

from __future__ import annotations

import argparse

import onnx_graphsurgeon as gs

from ops.rounding import Options as SolverOptions
from tools.data_options import image_options
from tools.finetune_file import LayerProgress, tuning_lines
from transforms import model_io
from transforms.feeds import model_inputs, open_feeds
from transforms.finetune_model import FinetuneOptions, finetune_model
from transforms.finetune_rule import STEPPED, FinetuneRule, make_finetune_rule
from transforms.finetune_weights import WalkOptions
from transforms.float_twin import float_twin
from transforms.run_model import RunOptions
from transforms.scheme import Scheme
from transforms.tune_layer import TuneOptions


def tune_quantized(graph: gs.Graph, scheme: Scheme, options: argparse.Namespace) -> gs.Graph:
    """Return the graph with tuned weights, and print what became of each layer.

    The samples are those of ``--calibration-data``. Raises ValueError without them, or if they do not fit.
    """
    rule = make_finetune_rule(scheme.finetune)
    assert rule is not None, "asked for by the scheme"
    if options.calibration_data is None:
        raise ValueError(f"fine-tuning ({rule.algorithm}) needs samples: give --calibration-data DIR")
    twin = float_twin(lambda: model_io.load(options.input), graph)
    limits = [limit for limit in (options.limit, rule.data_size) if limit]
    named = open_feeds(
        options.calibration_data,
        model_inputs(twin),
        images=image_options(options),
        limit=min(limits, default=None),
    )
    feeds = [feed for _, feed in named]
    run = RunOptions(options.provider, options.threads)
    with LayerProgress() as progress:
        done = finetune_model(twin, graph, feeds, finetune_options(rule, run), progress=progress)
    for line in tuning_lines(done, len(feeds)):
        print(line)
    return done.graph


def finetune_options(rule: FinetuneRule, run: RunOptions) -> FinetuneOptions:
    """Return the options that a rule means."""
    solver = SolverOptions()
    if rule.algorithm in STEPPED:
        solver = SolverOptions(
            iterations=rule.num_iterations,
            learning_rate=rule.learning_rate or None,
            early_stop=rule.early_stop,
        )
    walk = WalkOptions(
        tune=TuneOptions(rule.algorithm, solver=solver),
        op_types=rule.target_op_type,
        seed=rule.fixed_seed,
        run=run,
    )
    output = None if rule.output_index < 0 else rule.output_index
    return FinetuneOptions(walk, output, rule.selective_update)

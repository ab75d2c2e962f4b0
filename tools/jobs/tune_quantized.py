"""Tuning what ``tools.quantize`` has just made, where its scheme says so."""

from __future__ import annotations

import argparse

import onnx_graphsurgeon as gs

from tools.cli.data_options import image_options
from tools.jobs.finetune import tune, walk_options
from tools.summaries.tuning import tuning_lines
from transforms.finetune.finetune_model import FinetuneOptions
from transforms.mix_precision.mix import MixedPrecision
from transforms.model import provenance
from transforms.run.feeds import open_feeds
from transforms.runtime.inputs import model_inputs
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme

_SCHEME = provenance.PREFIX + "scheme"


def tune_quantized(
    graph: gs.Graph, twin: gs.Graph, scheme: Scheme, flag: str, options: argparse.Namespace
) -> gs.Graph:
    """Return the graph with tuned weights, and print what became of each layer.

    ``twin`` is the float model as it was quantized, ``flag`` the option that names the folder of samples.
    Raises ValueError without them, or if they do not fit.
    """
    rule = scheme.finetune
    assert rule is not None, "asked for by the scheme"
    folder = getattr(options, flag.removeprefix("--").replace("-", "_"))
    if folder is None:
        raise ValueError(f"fine-tuning ({rule.algorithm}) needs samples: give {flag} DIR")
    limits = [limit for limit in (options.limit, rule.data_size) if limit]
    named = open_feeds(
        folder,
        model_inputs(twin),
        images=image_options(options),
        limit=min(limits, default=None),
    )
    feeds = [feed for _, feed in named]
    walk = walk_options(rule, RunOptions(options.provider, options.threads))
    output = None if rule.output_index < 0 else rule.output_index
    chosen = FinetuneOptions(walk, output, rule.selective_update)
    done = tune(twin, graph, feeds, chosen, formats=scheme.named_formats)
    for line in tuning_lines(done, len(feeds)):
        print(line)
    return done.graph


def tune_mixed(
    mixed: MixedPrecision, scheme: Scheme, flag: str, options: argparse.Namespace
) -> tuple[gs.Graph, Scheme]:
    """Tune a model in mixed precision as :func:`tune_quantized` does, and return it with its scheme.

    Tuning goes by the error of samples that are held out: should the tuned model break the target, it is said
    so, and the model is returned as it was.
    """
    used = mixed.scheme.with_(finetune=scheme.finetune)
    tuned = tune_quantized(mixed.graph, mixed.float_graph, used, flag, options)
    tuned.info.metadata.setdefault(_SCHEME, "")  # the first of the entries, as files have always had it
    target = mixed.assignment.target if mixed.assignment else None
    if target is not None and mixed.evaluation is not None:
        value = mixed.evaluation.score(tuned)
        holds = target.holds(value)
        kept = "" if holds else ": the model stays as it was"
        print(f"Tuned: {target.text(value)}, the target is {target.bound}{kept}")
        if not holds:
            return mixed.graph, mixed.scheme
    return tuned, used

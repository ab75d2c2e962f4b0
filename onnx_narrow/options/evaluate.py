"""Options of ``evaluate`` alone; those of samples are of the function, which runs models, too."""

from __future__ import annotations

from onnx_narrow.options.kinds import (
    DATA,
    FLAG,
    LABELS,
    PATH,
    REQUIRED,
    TABLE,
    TEXT,
    TEXTS,
    number,
    unchecked,
    whole,
)
from onnx_narrow.options.option import OTHER, USUAL, Need, Option
from onnx_narrow.options.shared import DATA as OF_DATA

_JOB = "evaluate"
_LOGITS = (Need("{logits}"),)

ROWS: tuple[Option, ...] = (
    Option("baseline", unchecked("Model", REQUIRED), _JOB, "--baseline_results_folder A", USUAL, (),
           "folder of the float model's results", read="path"),
    Option("quantized", unchecked("Model", REQUIRED), _JOB, "--quantized_results_folder B", USUAL, (),
           "folder of the quantized model's", read="path"),
    Option("data", DATA, "evaluate()", "", USUAL, (), "samples on which both models are run"),
    Option("metrics", TABLE("Mapping[str, Metric]"), "evaluate()", "", USUAL, (),
           "figures of your own: functions of both arrays of an output of a sample, by name"),
    Option("labels", LABELS, _JOB, "--labels --top1 LABELS.npy", USUAL, (),
           "class numbers of all rows: report accuracy and agreement", read="path"),
    Option("logits", TEXT, _JOB, "--logits OUTPUT", USUAL, (),
           "output that holds logits of tokens: report KL divergence and how often the first choice is the "
           "same; mean and worst values are of it alone, without the mean of each row"),
    Option("tokens", PATH, _JOB, "--tokens PATH", USUAL, _LOGITS,
           "the samples that the results belong to, with input_ids, as {data} of tools.infer: report "
           "perplexity"),
    Option("max_kl", number(0), _JOB, "--max-kl NATS", USUAL, _LOGITS, "fail above this KL divergence"),
    Option("max_perplexity", number(1), _JOB, "--max-perplexity X", USUAL, (Need("{tokens}"),),
           "fail above this perplexity"),
    Option("min_same", number(0, 1), _JOB, "--min-same SHARE", USUAL, _LOGITS,
           "fail below this share of the same first choice"),
    Option("min_greedy", number(0, 1), _JOB, "--min-greedy SHARE", USUAL, (),
           "fail below this share of the same tokens that both models wrote (tools.infer {generate})"),
    Option("json", PATH, _JOB, "--json FILE", USUAL, (), "write all figures as JSON"),
    Option("csv", PATH, _JOB, "--csv FILE", USUAL, (), "write one line per file as CSV"),
    Option("peak", number(0, above=True), _JOB, "--peak X", OTHER, (), "signal peak for psnr and ssim"),
    Option("allow_missing", FLAG, _JOB, "", OTHER, (), "compare the file names common to both folders"),
    Option("force", FLAG, _JOB, "", USUAL, (Need("{json} or {csv}"),),
           "overwrite the files of {json} and {csv}"),
    Option("output_names", TEXTS, "evaluate()", "", OTHER, OF_DATA, "compare only these outputs"),
    Option("generate", whole(0).by_default(0), "evaluate()", "", OTHER, OF_DATA,
           "compare N tokens that a language model generates after each sample"),
)  # fmt: skip
"""Rows by group, in the order of ``--help``."""

"""Options of a gate: a metric that the model must meet on samples that did not search."""

from __future__ import annotations

from dataclasses import dataclass

from tools.cli.job_options import Options
from tools.cli.option_values import number
from tools.cli.options import SEARCH, option

_METRIC = "metric that held-out samples must meet: sqnr, top1, kl, cosine, f1 or FILE.py:FUNCTION"


@dataclass(frozen=True, kw_only=True)
class GateOptions(Options):
    """A metric and its bounds."""

    min_metric: float | None = option(
        "--min-metric X", "least that the metric may be", group=SEARCH, type=number()
    )
    max_loss: float | None = option(
        "--max-loss X",
        "most by which it may be less than the float model's",
        group=SEARCH,
        type=number(0),
    )
    metric: str | None = option("--metric NAME|FILE.py:FUNCTION", _METRIC, group=SEARCH)


GATE_HELP = """\
--metric with --min-metric or --max-loss sets the bound of a metric on held-out samples, which the metric less
its standard error must meet; as few layers as possible are kept in float for it. Where none are enough, no
file is written, the exit code is 3, and one line names the metric, its value and interval, the bound and the
layers at fault. The function gets a list with a dictionary of arrays for each sample, the outputs by name,
and by parameters of these names the same of the float model (expected), the inputs, and the places of the
samples in the data (places), for labels. It returns one number, or one for each sample; higher is better."""

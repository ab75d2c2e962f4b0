"""What runs of the float model propose, if possible before calibration: one pass then measures both forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.choose_ranges.candidate import Candidate
from transforms.judge.first_samples import FirstSamples
from transforms.choose_ranges.float_runs import FloatRuns
from transforms.model.copy_graph import copy_graph
from transforms.runtime.session import RunOptions

Propose = Callable[[FloatRuns], Candidate | None]
"""Makes a candidate of runs of the float model; its rewrite gives new names to all that it changes."""

Variant = tuple[Candidate, gs.Graph]
"""A candidate and a copy of the graph that it has rewritten."""


@dataclass(frozen=True)
class Proposed:
    """Runs of the float model, and the candidate that they propose, none or one."""

    floats: FloatRuns
    variants: Sequence[Variant] = ()


def propose_of(
    graph: gs.Graph,
    feeds: Sequence[Feed],
    run: RunOptions | None,
    propose: Propose | None,
    known: FloatRuns | None = None,
) -> Proposed:
    """Run a graph on samples, if there is anything to propose, and return that.

    ``known``: runs of the same float model on some of them, which serve as well if nothing is proposed.
    """
    floats = FloatRuns(graph, feeds, run)
    candidate = None if propose is None else propose(floats)
    if known is not None and not floats.is_begun and known.is_of(graph):
        floats = known.continued(feeds)
    return Proposed(floats, () if candidate is None else rewritten(graph, [candidate]))


def propose_early(
    graph: gs.Graph,
    samples: FirstSamples,
    data: CalibrationData,
    propose: Propose | None,
    fewest: int,
    known: FloatRuns | None = None,
) -> Proposed | None:
    """Return the same before the samples were taken; None if they can be taken only once, or are too few.

    None with a cache, too: it keeps statistics of the model alone.
    """
    if propose is None or data.cache is not None or not samples.feeds.is_repeatable:
        return None
    try:
        feeds = samples.again()
        return propose_of(graph, feeds, data.run, propose, known) if len(feeds) >= fewest else None
    except Exception:  # the runtime's share no narrower class; calibration tells which sample it is
        return None


def shown_beside(graph: gs.Graph, variants: Sequence[Variant]) -> gs.Graph | None:
    """Return a copy of a graph that has the tensors of rewritten ones, too; None without any."""
    shows = [candidate.show for candidate, _ in variants if candidate.show is not None]
    copy = copy_graph(graph) if shows else None
    for show in shows if copy is not None else ():
        show(copy)
    return copy


def rewritten(graph: gs.Graph, candidates: Sequence[Candidate]) -> list[Variant]:
    """Return the candidates that change something, with changed copies of a graph."""
    found = [(candidate, copy_graph(graph)) for candidate in candidates]
    return [(one, copy) for one, copy in found if one.rewrite is None or one.rewrite(copy)]

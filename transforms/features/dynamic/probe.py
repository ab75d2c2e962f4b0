"""Find outlying channels of tensors that are rounded at run time, without judging outputs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from ops.array_types import Feed, Float32Array
from transforms.channels.propose_moves import propose_moves
from transforms.features.dynamic.operands import dynamic_operands
from transforms.judge.budget import too_large
from transforms.judge.constants import ROWS
from transforms.moves.outliers import some_rows
from transforms.pipelines.measure import change_channels
from transforms.pipelines.work import Work
from transforms.run.instrumented_model import InstrumentedModel
from transforms.run.lifelike_feeds import FEEDS, lifelike_feeds
from transforms.scheme.outlier_move import OutlierMove

_EACH = ROWS // FEEDS


def move_unjudged(work: Work) -> None:
    """Move outliers of tensors that dynamic products round, as estimated on random tokens or numbers.

    Uses samples where there are any; does nothing unless the scheme leaves outliers open. A model that does
    not run on random numbers keeps its outliers, which is noted.
    """
    if not work.asked.move_outliers or work.asked.outliers:
        return
    moves = {name: str(move) for name, move in _proposed(work).items()}
    if moves:
        alone = work.scheme.with_(outliers=moves, equalize_layers=False, rotate_channels=False)
        change_channels(work, work.graph, alone, work.record)
        work.base.graph = None  # it has the form before the move
    work.asked = work.asked.with_(outliers=moves, move_outliers=False)
    work.scheme = work.scheme.with_(outliers=moves, move_outliers=False)


def _proposed(work: Work) -> dict[str, OutlierMove]:
    """Return the moves; none, with a note, for a model that is too large or does not run."""
    operands = dynamic_operands(work.plan())
    names = list(dict.fromkeys(str(operand.tensor.name) for operand in operands))
    if not names:
        return {}
    if too_large(work.graph):
        work.record.notes.append("Outliers not looked for: the model is too large to run for that")
        return {}
    try:
        return propose_moves(operands, _rows(work, names), clips=False)
    except Exception as error:  # the runtime's exceptions share no narrower class
        work.record.notes.append(
            f"Outliers not looked for, the model does not run on random numbers: {error}"
        )
        return {}


def _rows(work: Work, names: list[str]) -> dict[str, list[Float32Array]]:
    """Return rows of tensors of the float model for each sample."""
    rows: dict[str, list[Float32Array]] = {name: [] for name in names}
    model = InstrumentedModel[str](work.graph, (), work.options.run, watched=names)
    for feed in _feeds(work):
        model.run(feed, see=lambda name, array: rows[name].append(some_rows(array, _EACH)))
    return rows


def _feeds(work: Work) -> Iterable[Feed]:
    if work.data is not None and not work.options.random_data:
        return (feed for _, feed in islice(work.data.feeds(work.graph), FEEDS))
    return lifelike_feeds(work.graph, FEEDS)

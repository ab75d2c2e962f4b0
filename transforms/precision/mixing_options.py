"""Options of mixed precision, and the folder in which results of measurements are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from transforms.files import cleanup
from transforms.graph.some_names import counted
from transforms.model import provenance
from transforms.model.graph_proto import model_hash
from transforms.model_io import bytes_written
from transforms.precision.mixed import Mixed
from transforms.precision.mixed_model import MixedModel
from transforms.run.feeds import Feeds
from transforms.run.task_log import TaskLog
from transforms.run.workers import Workers
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme
from transforms.scheme.mixing_rule import MixingRule
from transforms.search.user_metric import split_place

_RESULTS = "results.jsonl"


@dataclass(frozen=True)
class MixingOptions:
    """Options of the measurements.

    ``run``: options of sessions. ``workers``: processes that measure layers. ``folder``: where results are
    kept, to resume a job on the same model, data and options; on a disk that all workers share. ``labels``
    [n]: the right class of each row of the outputs. ``analyse_only``: nothing is moved. ``bytes_written``:
    returns the bytes of the file of a model, given its scheme; it may change the model.
    """

    run: RunOptions = field(default_factory=RunOptions)
    workers: Workers = field(default_factory=Workers)
    folder: Path | None = None
    labels: NDArray[np.integer] | None = None
    analyse_only: bool = False
    bytes_written: Callable[[Mixed, Scheme], int] = lambda mixed, _: bytes_written(mixed.graph)


@contextmanager
def open_results(
    model: MixedModel, feeds: Feeds, rule: MixingRule, options: MixingOptions
) -> Iterator[tuple[TaskLog, list[str]]]:
    """Yield the log of results in the folder of the options, in a temporary folder without one, and notes.

    A note says if the folder has results of other jobs only, which are not used.
    """
    results = options.folder and options.folder.resolve() / _key(model, feeds, rule, options)
    notes = _not_used(results) if results is not None else []
    with cleanup.temporary_folder() if results is None else nullcontext(results) as folder:
        folder.mkdir(parents=True, exist_ok=True)
        yield TaskLog(folder / _RESULTS), notes


def _not_used(results: Path) -> list[str]:
    count = 0 if results.exists() else sum(1 for _ in results.parent.glob(f"*/{_RESULTS}"))
    of_others = f"results of {counted(count, 'job')} on another model, scheme, options or samples"
    return [f"Begun anew: '{results.parent}' holds {of_others}"] if count else []


def _key(model: MixedModel, feeds: Feeds, rule: MixingRule, options: MixingOptions) -> str:
    """Return a hash of everything that results depend on."""
    labels = b"" if options.labels is None else options.labels.tobytes()
    function = Path(split_place(rule.evaluate)[0]).read_bytes() if rule.evaluate else b""
    inputs = [
        provenance.software(),
        model_hash(model.graph),
        feeds.hash(),
        model.scheme.to_toml(),
        repr((rule.output_index, rule.evaluate, options.run.provider)),
        hashlib.sha256(labels).hexdigest(),
        hashlib.sha256(function).hexdigest(),
    ]
    return hashlib.sha256("\n".join(inputs).encode()).hexdigest()[:16]

"""Step: round weights so that the outputs of their layers on samples have the least error."""

from __future__ import annotations

import operator

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.calibrate.calibration_data import CalibrationData
from transforms.graph.embeddings import logits_of
from transforms.graph.some_names import counted
from transforms.judge.sample_roles import fitting, taken
from transforms.pipelines.finished import finished_layers
from transforms.pipelines.work import Work
from transforms.run.failing_samples import failing
from transforms.scheme.fitted_weights import has_8_bits, has_few_bits


def fit(work: Work) -> None:
    """Round weights of few bits, or of 8 bits if none has few, to fit the outputs of their layers, in place.

    Warns if the texts have fewer tokens than a layer has inputs. Raises ValueError for a model that fails on
    a sample.
    """
    from transforms.finetune.fit_weights import fit_weights, options_for

    assert work.data is not None and work.base.graph is not None, "kept for this step"
    texts = bool(logits_of(work.base.graph))
    samples = _samples(work.data, work.base.graph, texts=texts)
    feeds, run = list(samples.values()), work.data.run
    options = options_for(len(feeds), run, work.data.memory_limit)
    progress = work.events.phase("fitting", "layer")
    rows = _Rows()
    with failing(samples, work.base.graph, run, "the quantized model"):
        layers, fitted = fit_weights(
            work.base.graph,
            work.graph,
            feeds,
            options,
            formats=work.scheme.named_formats,
            progress=progress,
            see=rows.see if texts else None,
            files=finished_layers(work, work.base.graph),
            rounds=has_few_bits if work.scheme.has_few_bits else has_8_bits,
        )
    work.scheme = work.record.scheme = work.scheme.with_(fit_weights=layers > 0)
    if layers:
        work.record.decisions.fitted = True
        words = f"Weights rounded to fit layer outputs: {fitted} of {layers} layers"
        work.record.decisions.notes.append(words)
    if rows.few:
        work.events.warn(f"Warning: {rows}")


class _Rows:
    """Counts layers with fewer rows of samples than inputs; ``few``: their number."""

    def __init__(self) -> None:
        self.few, self._first = 0, ""

    def see(self, layer: str, rows: int, inputs: int) -> None:
        """Count a layer."""
        if rows < inputs:
            self._first = self._first or f"'{layer}' has {rows:,} tokens of samples for {inputs:,} inputs"
            self.few += 1

    def __str__(self) -> str:
        more = f", {counted(self.few - 1, 'other layer')} too few as well" if self.few > 1 else ""
        return f"{self._first}{more}: weights suit these texts more than others; more samples help"


def _samples(data: CalibrationData, graph: gs.Graph, *, texts: bool) -> dict[str, Feed]:
    """Return enough samples, evenly spaced among those that may decide, by name."""
    source = data.feeds(graph)
    count = operator.length_hint(source, 0) or sum(1 for _ in source)
    return dict(taken(source, set(fitting(count, texts=texts))))

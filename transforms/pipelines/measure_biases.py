"""From a scheme and its samples to biases that are measured on the quantized model."""

from __future__ import annotations

from dataclasses import replace

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.choose_ranges.float_runs import FloatRuns
from transforms.choose_ranges.work import BIAS_RUNS, too_large
from transforms.judge.first_samples import FirstSamples
from transforms.pipelines.quantize_steps import CORRECTED, Quantized
from transforms.pipelines.settle_biases import SAMPLES, outputs_of_layers, settle_biases
from transforms.scheme import Scheme
from transforms.scheme.scheme import AUTO

_FEW_BITS = 8  # weights of fewer get their scales from the outputs of layers afterwards


class BiasSamples:
    """Samples that biases are measured on: eight, or none.

    ``data``: what is calibrated on, from which they are taken. ``feeds``: the samples, after :meth:`take`.
    """

    def __init__(self, graph: gs.Graph, scheme: Scheme, data: CalibrationData | None) -> None:
        """Look at what a scheme says.

        Outputs decide if ranges are theirs, too, unless weights have few bits: those get other scales yet.
        """
        self.data, self.feeds, self._scheme = data, list[Feed](), scheme
        self._outputs: dict[int, str] = {}
        self._samples: FirstSamples | None = None
        if data is None or data.memory_limit is not None or too_large(graph):
            return
        few = any(fmt.bits < _FEW_BITS for fmt in scheme.named_formats)
        decided = self._is_judged and scheme.correct_biases == AUTO and data.decides and not few
        if decided or scheme.measured_biases is True:
            self._samples = FirstSamples(data.feeds(graph), graph, SAMPLES)
            self.data = replace(data, source=self._samples.feeds)

    @property
    def _is_judged(self) -> bool:
        return self._scheme.measured_biases == AUTO

    def take(self, graph: gs.Graph, spare: int) -> None:
        """Take them before a float graph is quantized, unless ``spare`` runs are too few to judge by."""
        if self._samples is None or (self._is_judged and spare < BIAS_RUNS):
            return
        feeds = self._samples.again()
        if len(feeds) == SAMPLES:
            self.feeds, self._outputs = feeds, outputs_of_layers(graph)

    def settle(self, graph: gs.Graph, float_graph: gs.Graph | None, done: Quantized) -> None:
        """Correct biases of the graph, which is quantized by now, in place, and say so."""
        if not self.feeds or float_graph is None or self.data is None or done.scheme is None:
            return
        floats = FloatRuns(float_graph, self.feeds, self.data.run)
        count = settle_biases(graph, self._outputs, floats, self.data.run, judged=self._is_judged)
        done.changes[CORRECTED] = count
        done.scheme = done.scheme.with_(measured_biases=count > 0 or not self._is_judged)

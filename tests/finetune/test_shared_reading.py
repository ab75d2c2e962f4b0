"""Tuning by workers that run the models. Oracle: sums and models of one process, bit for bit."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnx_narrow.api.executors import workers as workers_of
from tests.helpers import tunable
from tests.helpers.serial_executor import deadly_workers
from tests.helpers.spread import spread
from tests.layers.test_shared_weights import CHAIN, STEPS, TWINS
from transforms.finetune.collect_gram import open_sums
from transforms.finetune.finetune_model import finetune_model
from transforms.finetune.layer_stats import SharedGramStats
from transforms.finetune.options import FinetuneOptions
from transforms.layers.match_layers import match_layers
from transforms.model import graph_proto
from transforms.run.segmented_model import StepTask
from transforms.run.workers import Workers

COUNT = 20
NAMES = ("x", "y", "xx", "yx", "yy", "x_rows", "y_rows")


MODELS = {
    "conv": tunable.conv_net(),
    "twins": TWINS,
    "steps": STEPS,
    "chain": CHAIN,
}
CONV, DATA = MODELS["conv"], tunable.samples(MODELS["conv"], COUNT)


def _sums(
    model: onnx.ModelProto, preset: str, workers: Workers | None, options: FinetuneOptions
) -> list[tuple[SharedGramStats, SharedGramStats]]:
    """Return the sums of all layers; after the first, with other weights, those of a shared weight again."""
    data = tunable.samples(model, COUNT)
    float_graph, quantized = tunable.pair(model, preset, data)
    layers, _ = match_layers(float_graph, quantized)
    found = []
    with open_sums(float_graph, quantized, data, layers, options, workers) as reader:
        for number, layer in enumerate(layers):
            found.append(reader.read(number))
            if layer.sharing_layers:
                reader.restart()
                found.append(reader.read(number))
            reader.forget(number)
    return found


@pytest.mark.parametrize("name", spread(MODELS, of=2))
def test_sums_are_those_of_one_process(name: str) -> None:
    options = FinetuneOptions(following_relu=True, least_rows=150, most_rows=1)
    preset = "A8W8" if name == "conv" else "MX6"
    with workers_of(2, None) as workers:
        found, expected = (_sums(MODELS[name], preset, one, options) for one in (workers, None))
    assert len(found) == len(expected) > 1
    for pair, other in zip(found, expected, strict=True):
        for sums, there in zip(pair, other, strict=True):
            assert sums.has_bias == there.has_bias
            for one, two in zip(sums.parts, there.parts, strict=True):
                assert one.count == two.count > 0
                assert all(
                    np.array_equal(getattr(one, name), getattr(two, name))
                    for name in NAMES
                    if hasattr(one, name)
                )


def _tuned(workers: Workers | None) -> bytes:
    float_graph, quantized = tunable.pair(CONV, "MX6", DATA)
    with workers or nullcontext():
        done = finetune_model(float_graph, quantized, DATA, FinetuneOptions(), workers=workers)
    assert done.attempt
    return graph_proto.export_model(done.graph).SerializeToString(deterministic=True)


@cache
def _alone() -> bytes:
    """Return the model that one process makes."""
    return _tuned(None)


@pytest.mark.parametrize("dask", [None, pytest.param("local", marks=pytest.mark.heavy)])
def test_the_model_does_not_depend_on_how_many_workers_there_are(dask: str | None) -> None:
    if dask:
        pytest.importorskip("distributed")
    assert _tuned(workers_of(2, dask)) == _alone()


def test_a_worker_that_dies_costs_its_task_alone() -> None:
    given: list[StepTask] = []
    assert _tuned(deadly_workers(given, deadly=4)) == _alone()
    assert len({one.folder for one in given[: COUNT + 1]}) == 1 and given[COUNT + 1].folder != given[0].folder


@pytest.mark.heavy
def test_a_worker_of_a_cluster_that_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    from tests.tools.test_dask_executor import Cluster

    cluster = Cluster(tmp_path)
    first, _ = cluster.add_worker(), cluster.add_worker()
    steps: list[Workers] = []

    class _Killing(Workers):
        def map(self, task, items):  # type: ignore[no-untyped-def]
            steps.append(self)
            if len(steps) == 3:
                first.kill()
            return super().map(task, items)

    try:
        found = _tuned(_Killing(workers_of(1, cluster.address)._opens))
    finally:
        cluster.end()
    assert found == _alone() and len(steps) >= 3


def test_an_error_in_a_sample_is_that_of_one_process() -> None:
    """Workers that fail say why; what went wrong is not tried again."""
    float_graph, quantized = tunable.pair(CONV, "MX6", DATA)
    layers, _ = match_layers(float_graph, quantized)
    data = [*DATA[:-1], {"x": DATA[0]["x"][:, :2]}]
    messages = []
    for workers in (None, Workers(), workers_of(2, None)):
        with (
            pytest.raises(Exception, match="running Conv node") as caught,
            workers or nullcontext(),
            open_sums(float_graph, quantized, data, layers, FinetuneOptions(), workers) as reader,
        ):
            reader.read(0)
        messages.append((type(caught.value), str(caught.value)))
    assert len(set(messages)) == 1

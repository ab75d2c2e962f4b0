"""Products of matrices on one thread. Oracles: what threadpoolctl says, and the same work twice."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from threadpoolctl import threadpool_info, threadpool_limits

from tests.helpers import build, tunable
from transforms.finetune.finetune_weights import finetune_weights
from transforms.finetune.options import FinetuneOptions
from transforms.model import graph_proto
from transforms.model.copy_graph import copy_graph
from transforms.run.run_each import products_on_one_thread
from transforms.run.workers import open_processes

SIZE = 300
"""Inputs of a layer: with two threads last bits of products of this size are others."""


def _threads() -> list[int]:
    return [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]


def test_there_are_as_many_threads_as_before_afterwards() -> None:
    with threadpool_limits(limits=2, user_api="blas"):
        before = _threads()
        with products_on_one_thread():
            assert set(_threads()) <= {1}
        assert _threads() == before
        with pytest.raises(KeyError), products_on_one_thread():
            raise KeyError
        assert _threads() == before


def test_processes_that_work_for_this_one_have_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    with open_processes(1) as executor:
        found = executor.submit(threadpool_info).result()
    assert {one["num_threads"] for one in found if one["user_api"] == "blas"} <= {1}


def test_tuning_does_not_depend_on_the_number_of_threads() -> None:
    """Weights and errors, which tell of last bits; without the limit the errors are not the same."""
    random = np.random.default_rng(0)
    weight = random.standard_normal((SIZE, SIZE)).astype(np.float32)
    x, y = build.value("x", [16, SIZE]), build.value("y", [16, SIZE])
    model = build.model([helper.make_node("MatMul", ["x", "w"], ["y"], "product")], [x], [y], {"w": weight})
    data = [{"x": random.standard_normal((16, SIZE)).astype(np.float32)} for _ in range(30)]
    float_graph, quantized = tunable.pair(model, "W4A8", data)
    found, options = [], FinetuneOptions(algorithm="gptq")
    for threads in (1, 2):
        graph = copy_graph(quantized)
        with threadpool_limits(limits=threads, user_api="blas"):
            (layer,) = finetune_weights(float_graph, graph, data, options).layers
        content = graph_proto.export_model(graph).SerializeToString(deterministic=True)
        found.append((layer.before, layer.after, layer.of_inputs, content))
    assert found[0] == found[1]

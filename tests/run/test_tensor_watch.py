"""Tensors that are seen while a model runs. Oracle: the same tensors as outputs of the model."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from ops import _library, show
from tests.helpers import build, corpus
from transforms.model import graph_proto
from transforms.run import instrumented_model
from transforms.run.instrumented_model import InstrumentedModel
from transforms.runtime.session import OpenModel, RunOptions, open_light

NAMES = ["x", "matmul0_out", "y"]


def rows(count: int, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    return {"x": np.random.default_rng(seed).standard_normal((count, 16)).astype(np.float32)}


def watched() -> InstrumentedModel[str]:
    graph = graph_proto.import_model(build.dense(layers=2))
    return InstrumentedModel(graph, ["y"], RunOptions(threads=1), watched=NAMES)


def test_tensors_are_seen_once_in_the_order_in_which_they_are_made() -> None:
    graph = graph_proto.import_model(build.dense(layers=2))
    expected = InstrumentedModel(graph, NAMES, RunOptions(threads=1)).run(rows(5))
    seen: list[tuple[str, NDArray[np.float32]]] = []
    shown = watched().run(rows(5), see=lambda name, array: seen.append((name, array.copy())))
    assert [name for name, _ in seen] == NAMES
    assert all(array.tobytes() == expected[name].tobytes() for name, array in seen)
    assert shown.keys() == {"y"} and shown["y"].tobytes() == expected["y"].tobytes()


def test_scalars_and_tensors_without_elements() -> None:
    model = corpus.parse(
        "(float[N] x) => (float y, float[N] z) { y = ReduceSum <keepdims = 0> (x) z = Neg(x) }"
    )
    watch = InstrumentedModel(graph_proto.import_model(model), [], watched=["y", "z"])
    shapes = {}
    watch.run({"x": np.zeros(0, np.float32)}, see=lambda name, array: shapes.update({name: array.shape}))
    assert shapes == {"y": (), "z": (0,)}


def test_an_exception_ends_the_run_and_comes_out_of_it() -> None:
    seen = []

    def _refuse(name: str, array: object) -> None:
        seen.append(name)
        raise LookupError(f"not {name}")

    model = watched()
    with pytest.raises(LookupError, match="not x"):
        model.run(rows(2), see=_refuse)
    assert seen == ["x"] and model.run(rows(2)).keys() == {"y"}  # and nobody looks any more


def test_other_types_are_refused_by_name() -> None:
    graph = graph_proto.import_model(corpus.build("integers"))
    model = InstrumentedModel(graph, [], watched=["j"])
    with pytest.raises(ValueError, match=r"^'j' is a tensor\(int64\), only tensors of float32 have ranges$"):
        model.run(corpus.feeds(corpus.build("integers")), see=lambda *_: None)


def test_runs_in_several_threads_see_their_own_tensors() -> None:
    model = watched()

    def _sum(seed: int) -> float:
        found: list[float] = []
        model.run(rows(50, seed), see=lambda name, array: found.append(float(array.sum())))
        return found[0]

    with ThreadPoolExecutor(4) as pool:
        sums = list(pool.map(_sum, range(40)))
    assert sums == [float(rows(50, seed)["x"].sum()) for seed in range(40)]


def test_who_looks_is_forgotten_with_the_model() -> None:
    gc.collect()
    before = len(_library.watchers)
    model = watched()
    assert len(_library.watchers) == before + len(NAMES)
    del model
    gc.collect()
    assert len(_library.watchers) == before


def test_a_model_with_a_number_that_nobody_has_fails() -> None:
    """A file may hold such a node; nothing of this process is called then."""
    model = build.dense()
    node = model.graph.node.add(op_type=show.OP, domain=show.DOMAIN, input=["x"], output=["s"], name="s")
    node.attribute.add(name="number", i=1 << 60, type=2)
    model.opset_import.add(domain=show.DOMAIN, version=1)
    model.graph.output.add(name="s")
    graph = graph_proto.import_model(model)
    with pytest.raises(Exception, match="Size: who looks at the tensor refuses it"):
        InstrumentedModel(graph, ["s"]).run(rows(1))


def test_however_many_tensors_are_watched_the_runtime_has_one_output_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the runtime takes to open a model grows with the product of its nodes and its outputs."""
    opened = []

    def _open(light: onnx.ModelProto, *rest: object, **named: object) -> OpenModel:
        opened.append([value.name for value in light.graph.output])
        return open_light(light, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(instrumented_model, "open_light", _open)
    for tensors in ([], NAMES[:1], NAMES):
        graph = graph_proto.import_model(build.dense(layers=2))
        InstrumentedModel(graph, ["y"], watched=tensors).run(rows(2), see=lambda name, array: None)
    assert [len(outputs) for outputs in opened] == [1, 2, 2]

"""Gram sums that workers read. Oracle: those of one process without workers, bit for bit."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.helpers import build, tunable
from tests.layers.test_shared_weights import CHAIN, STEPS, TWINS
from tools.cli.executors import workers as workers_of
from transforms.finetune import gram
from transforms.finetune.checkpoint import Checkpoint
from transforms.finetune.collect_gram import GramReader, open_sums
from transforms.finetune.finetune_model import finetune_model
from transforms.finetune.finetune_weights import Memory, finetune_weights
from transforms.finetune.gram import GramStats
from transforms.finetune.shared_stats import SharedGramStats
from transforms.finetune.options import FinetuneOptions, LayerwiseOptions
from transforms.layers.match_layers import match_layers
from transforms.model import graph_proto
from transforms.model.copy_graph import copy_graph
from transforms.run import shared_steps
from transforms.run.processes import open_processes
from transforms.run.shared_steps import PartTask, StepSharing, parts_of
from transforms.run.tasks import KeptWorkers, SerialExecutor
from transforms.runtime.session import OpenModel, RunOptions, open_light

COUNT = 20  # ten parts
SERIAL = StepSharing(SerialExecutor)
NAMES = ("x", "y", "xx", "yx", "yy")


def residual_net() -> onnx.ModelProto:
    """Return x [n, 7, 16] through a MatMul that is added to x and normalized, and another, to y."""
    random = np.random.default_rng(0)
    weights = {name: (random.standard_normal((16, 16)) / 4).astype(np.float32) for name in ("w1", "w2")}
    weights |= {"g": np.ones(16, np.float32), "b": np.zeros(16, np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m"], "first"),
        helper.make_node("Add", ["m", "x"], ["s"], "sum"),
        helper.make_node("LayerNormalization", ["s", "g", "b"], ["l"], "norm"),
        helper.make_node("MatMul", ["l", "w2"], ["y"], "second"),
    ]
    ends = build.value("x", ["n", 7, 16]), build.value("y", ["n", 7, 16])
    return build.model(nodes, [ends[0]], [ends[1]], weights)


MODELS = {
    "conv": tunable.conv_net(),
    "twins": TWINS,
    "steps": STEPS,
    "chain": CHAIN,
    "stream": residual_net(),
}
CONV, DATA = MODELS["conv"], tunable.samples(MODELS["conv"], COUNT)


def _sums(
    model: onnx.ModelProto, preset: str, sharing: StepSharing | None, options: LayerwiseOptions
) -> list[tuple[SharedGramStats, SharedGramStats]]:
    """Return the sums of all layers; after the first, with other weights, those of a shared weight again."""
    data = tunable.samples(model, COUNT)
    float_graph, quantized = tunable.pair(model, preset, data)
    layers, _ = match_layers(float_graph, quantized)
    found = []
    with open_sums(float_graph, quantized, data, layers, options, sharing) as reader:
        for number, layer in enumerate(layers):
            found.append(reader.read(number))
            if layer.sharing_layers:
                reader.restart()
                found.append(reader.read(number))
            reader.forget(number)
    return found


def _assert_same(
    found: list[tuple[SharedGramStats, SharedGramStats]],
    expected: list[tuple[SharedGramStats, SharedGramStats]],
) -> None:
    assert len(found) == len(expected)
    for pair, other in zip(found, expected, strict=True):
        for sums, there in zip(pair, other, strict=True):
            assert sums.has_bias == there.has_bias
            for one, two in zip(sums.parts, there.parts, strict=True):
                assert one.count == two.count > 0
                assert all(np.array_equal(getattr(one, name), getattr(two, name)) for name in NAMES)


@pytest.mark.parametrize("limit", [0, 500, gram.LIMIT])
@pytest.mark.parametrize("name", MODELS)
def test_sums_are_those_of_one_process(name: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a limit of numbers come blocks within a part; without any each is one, else rows are few."""
    monkeypatch.setattr(gram, "LIMIT", limit)
    options = LayerwiseOptions(following_relu=True, least_rows=150, most_rows=1)
    preset = "A8W8" if name == "conv" else "MX6"
    found, expected = (_sums(MODELS[name], preset, sharing, options) for sharing in (SERIAL, None))
    assert len(found) == len(expected) > 1
    _assert_same(found, expected)


def test_threads_of_workers_do_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle threads of one worker would take the cores that others need."""
    asked: list[bool] = []

    def _open(light: onnx.ModelProto, weights: Any, options: RunOptions, **more: bool) -> OpenModel:
        asked.append(options.spin)
        return open_light(light, weights, options, **more)

    monkeypatch.setattr(shared_steps, "open_light", _open)
    _sums(CONV, "A8W8", SERIAL, LayerwiseOptions())
    assert asked and not any(asked)


@pytest.mark.parametrize("limit", [0, 500])
def test_blocks_are_summed_up_by_others(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not rows alone that are few: sums of them come back."""
    from transforms.finetune.row_sums import RowsOfPart

    monkeypatch.setattr(gram, "LIMIT", limit)
    blocks: list[int] = []
    of = RowsOfPart.of

    def _note(arrays: Any, name: str) -> RowsOfPart:
        part = of(arrays, name)
        blocks.append(len(part.blocks))
        return part

    monkeypatch.setattr(RowsOfPart, "of", staticmethod(_note))
    _sums(CONV, "A8W8", SERIAL, LayerwiseOptions())
    assert max(blocks) >= 1 and (limit or min(blocks) == 0)


def _tuned(sharing: StepSharing | None, preset: str = "MX6", **more: Any) -> bytes:
    float_graph, quantized = tunable.pair(CONV, preset, DATA)
    done = finetune_model(float_graph, quantized, DATA, FinetuneOptions(), sharing=sharing, **more)
    assert done.attempt
    return _bytes(done.graph)


@cache
def _alone() -> bytes:
    """Return the model that one process makes."""
    return _tuned(None)


def _bytes(graph: Any) -> bytes:
    return graph_proto.export_model(graph).SerializeToString(deterministic=True)


@pytest.mark.parametrize("jobs", [2, 5])
def test_the_model_does_not_depend_on_how_many_workers_there_are(jobs: int) -> None:
    assert _tuned(StepSharing(partial(open_processes, jobs))) == _alone()


def test_workers_of_a_cluster() -> None:
    pytest.importorskip("distributed")
    assert _tuned(StepSharing(workers_of(2, "local"))) == _alone()


@pytest.mark.parametrize("count", [2, 3, 16, 17, 20, 512])
def test_parts_are_of_one_size_and_at_most_sixteen(count: int) -> None:
    parts = parts_of(count)
    assert [i for part in parts for i in part] == list(range(count))
    assert len(parts) <= 16 and len({len(part) for part in parts[:-1]}) <= 1


class _Deadly(Executor):
    """Hands tasks on, but in the place of the fourth, once, what ends a worker."""

    def __init__(self, inner: Executor, given: list[int], kill: Callable[[Executor], Future[Any]]) -> None:
        self._inner, self._given, self._kill = inner, given, kill

    def submit(self, fn: Callable[..., Any], /, *args: PartTask, **kwargs: Any) -> Future[Any]:
        self._given.append(args[0].first)
        if len(self._given) == 4:
            return self._kill(self._inner)
        return self._inner.submit(fn, *args, **kwargs)


def _dead(_: Executor) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(BrokenExecutor("died"))
    return future


def test_a_worker_that_dies_costs_its_task_alone() -> None:
    given: list[int] = []

    class _Serial(_Deadly, SerialExecutor):
        pass

    assert _tuned(StepSharing(lambda: _Serial(SerialExecutor(), given, _dead))) == _alone()
    firsts = [part.start for part in parts_of(COUNT)]
    assert given[: len(firsts) + 1] == [*firsts[:4], *firsts[3:]]


def test_a_process_that_is_killed() -> None:
    given: list[int] = []

    @contextmanager
    def _open() -> Iterator[Executor]:
        with open_processes(2) as inner:
            yield _Deadly(inner, given, lambda pool: pool.submit(os._exit, 1))

    assert _tuned(StepSharing(_open)) == _alone()
    assert given.count(given[3]) >= 2


def test_a_worker_of_a_cluster_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the third step; the other one finds the tensors of its samples in the folder."""
    pytest.importorskip("distributed")
    from tests.tools.test_dask_executor import Cluster

    cluster, steps = Cluster(tmp_path), list[object]()
    run = shared_steps.run_tasks

    def _run(*given: Any) -> dict[str, tuple[float, ...]]:
        steps.append(given)
        if len(steps) == 3:
            first.kill()
        return run(*given)

    monkeypatch.setattr(shared_steps, "run_tasks", _run)
    try:
        first, _ = cluster.add_worker(), cluster.add_worker()
        found = _tuned(StepSharing(workers_of(1, cluster.address), tmp_path / "kept"))
    finally:
        cluster.end()
    assert found == _alone() and len(steps) >= 3


def test_workers_are_opened_once_for_all_steps_and_attempts() -> None:
    opened: list[int] = []

    def _open() -> SerialExecutor:
        opened.append(1)
        return SerialExecutor()

    assert _tuned(StepSharing(_open)) == _alone()
    assert len(opened) == 1


def test_workers_are_opened_anew_once_they_failed() -> None:
    opened: list[str] = []

    @contextmanager
    def _open() -> Iterator[Executor]:
        opened.append("open")
        try:
            yield SerialExecutor()
        finally:
            opened.append("closed")

    with KeptWorkers(_open) as workers:
        with workers() as first, workers() as second:
            assert first is second
        with pytest.raises(BrokenExecutor), workers():
            raise BrokenExecutor
        assert opened == ["open", "closed"]
        with workers() as third:
            assert third is not first
    assert opened == ["open", "closed"] * 2


def test_nothing_is_left_in_the_folder(tmp_path: Path) -> None:
    left = tmp_path / "steps-0123"
    left.mkdir()
    (left / "of a killed process").touch()
    assert _tuned(StepSharing(SerialExecutor, tmp_path)) == _alone()
    assert not list(tmp_path.iterdir())


def test_an_error_in_a_sample_is_that_of_one_process() -> None:
    """Workers that fail say why; what went wrong is not tried again."""
    model = CONV
    float_graph, quantized = tunable.pair(model, "MX6", DATA)
    layers, _ = match_layers(float_graph, quantized)
    data = [*DATA[:-1], {"x": DATA[0]["x"][:, :2]}]
    messages = []
    for sharing in (None, SERIAL, StepSharing(partial(open_processes, 2))):
        with (
            pytest.raises(Exception, match="running Conv node") as caught,
            open_sums(float_graph, quantized, data, layers, LayerwiseOptions(), sharing) as reader,
        ):
            reader.read(0)
        messages.append((type(caught.value), str(caught.value)))
    assert len(set(messages)) == 1


class _Interrupted(Exception):
    pass


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("selective", [False, True])
@pytest.mark.parametrize("sharing", [None, SERIAL], ids=["alone", "shared"])
def test_a_run_goes_on_in_the_same_steps(
    name: str, selective: bool, sharing: StepSharing | None, tmp_path: Path
) -> None:
    """Steps that end elsewhere have other last bits, and a judge remembers what it has seen.

    Oracle: sums and weights of a run that was not interrupted.
    """
    data = tunable.samples(MODELS[name], COUNT)
    float_graph, quantized = tunable.pair(MODELS[name], "MX6", data)
    count = len(match_layers(float_graph, quantized)[0])

    def _tune(after: int | None, path: Path | None) -> tuple[bytes, list[np.ndarray]]:
        graph, sums = copy_graph(quantized), list[np.ndarray]()

        def _judge() -> float:
            """Return a number that says nothing but which weights the model has."""
            return int.from_bytes(hashlib.sha256(_bytes(graph)).digest()[:4])

        def _stop(layer: object, done: int, total: int) -> None:
            if done == after:
                raise _Interrupted

        memory = Memory(Checkpoint.open(path, "key"), "r") if path else None
        read = GramReader.read_parts

        def _read(self: GramReader, number: int, parts: int) -> tuple[list[SharedGramStats], SharedGramStats]:
            fit, held = read(self, number, parts)
            sums.extend(part.xx for kind in (*fit, held) for part in kind.parts)
            return fit, held

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GramReader, "read_parts", _read)
            try:
                finetune_weights(
                    float_graph,
                    graph,
                    data,
                    model_error=_judge if selective else None,
                    memory=memory,
                    sharing=sharing,
                    progress=_stop,
                )
            except _Interrupted:
                assert memory is not None
                memory.checkpoint.write()
        return _bytes(graph), sums

    whole, sums = _tune(None, None)
    for after in range(1, count):
        path = tmp_path / f"{after}.npz"
        _tune(after, path)
        again, read = _tune(None, path)
        assert again == whole
        assert all(np.array_equal(a, b) for a, b in zip(reversed(read), reversed(sums), strict=False))


def test_sums_merge() -> None:
    random = np.random.default_rng(0)
    first, second = (GramStats.zeros(2, 3, 4) for _ in range(2))
    for sums in (first, second):
        sums.add(random.standard_normal((2, 5, 4)), random.standard_normal((2, 5, 3)))
    both = first + second
    first.merge(second)
    assert first.count == both.count == 10
    assert all(np.array_equal(getattr(first, name), getattr(both, name)) for name in NAMES)

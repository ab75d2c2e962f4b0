"""Oracle: the bytes of a model whose layers were fitted, or tuned, in one go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from tests.helpers import tunable
from transforms.finetune import finetune_weights as tuning
from transforms.finetune import fit_weights as fitting
from transforms.finetune.finished_layers import FinishedLayers, LayerFiles
from transforms.model.graph_proto import export_model

CONV, PRODUCTS = tunable.conv_net(), tunable.matmul_net()

Walk = Callable[[gs.Graph, gs.Graph, list[dict[str, np.ndarray]], LayerFiles | None], object]


def _fit(
    float_graph: gs.Graph, graph: gs.Graph, feeds: list[dict[str, np.ndarray]], files: LayerFiles | None
) -> None:
    fitting.fit_weights(float_graph, graph, feeds, files=files)


def _tune(
    float_graph: gs.Graph, graph: gs.Graph, feeds: list[dict[str, np.ndarray]], files: LayerFiles | None
) -> None:
    tuning.finetune_weights(float_graph, graph, feeds, files=files)


class _Counted:
    """Counts the layers that are computed; the process ends before the one of a number."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function, self.count, self.last = function, 0, 1000

    def __call__(self, *arguments: object) -> object:
        if self.count == self.last:
            raise KeyboardInterrupt
        self.count += 1
        return self._function(*arguments)


CASES = [
    (_fit, fitting, "_rounded", CONV, "uint4"),
    (_fit, fitting, "_rounded", PRODUCTS, "int4"),
    (_tune, tuning, "tune_layer", CONV, "int4"),
    (_tune, tuning, "tune_layer", PRODUCTS, "uint4"),
]


@pytest.mark.parametrize(("walk", "module", "name", "model", "weight"), CASES)
def test_a_stopped_walk_goes_on_after_its_layers(
    walk: Walk,
    module: object,
    name: str,
    model: object,
    weight: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feeds = tunable.samples(model, 20)

    def _pair() -> tuple[gs.Graph, gs.Graph]:
        return tunable.pair(model, "W4A8", feeds, weight=weight)

    whole = _pair()
    counted = _Counted(getattr(module, name))
    monkeypatch.setattr(module, name, counted)
    walk(*whole, feeds, None)
    count = counted.count
    counted.count, counted.last = 0, count // 2
    with pytest.raises(KeyboardInterrupt):
        walk(*_pair(), feeds, FinishedLayers(tmp_path).walk("job"))
    files = FinishedLayers(tmp_path).walk("job")
    assert 0 < files.count <= count // 2
    counted.count, counted.last, known = 0, 1000, files.count
    resumed = _pair()
    walk(*resumed, feeds, files)
    assert counted.count < count and files.count > known
    assert _bytes(resumed[1]) == _bytes(whole[1])


@pytest.mark.parametrize("kept", [0, 100])
def test_a_layer_whose_file_was_cut_off_is_fitted_again(kept: int, tmp_path: Path) -> None:
    feeds = tunable.samples(CONV, 20)
    whole, resumed = (tunable.pair(CONV, "W4A8", feeds, weight="uint4") for _ in range(2))
    files = FinishedLayers(tmp_path).walk("job")
    _fit(*whole, feeds, files)
    first = sorted(tmp_path.glob("*/*.npz"))[0]
    first.write_bytes(first.read_bytes()[:kept])
    _fit(*resumed, feeds, files)
    assert _bytes(resumed[1]) == _bytes(whole[1])
    assert len(first.read_bytes()) > kept


def test_a_job_removes_its_own_layers_alone(tmp_path: Path) -> None:
    feeds = tunable.samples(CONV, 4)
    other, own = FinishedLayers(tmp_path / "kept"), FinishedLayers(tmp_path / "kept")
    _fit(*tunable.pair(CONV, "W4A8", feeds), feeds, files := other.walk("other model"))
    assert own.walk("model").count == 0 and own.others == files.count > 0
    assert other.walk("other model").count == files.count and other.others == 0
    own.remove()
    assert files.count
    other.remove()
    assert not (tmp_path / "kept").exists()


def _bytes(graph: gs.Graph) -> bytes:
    return export_model(graph).SerializeToString(deterministic=True)

"""Where the loss of real models begins. Oracle: the models quantized anew with layers in float, run by ONNX
Runtime on samples that neither ranges nor the report were made of."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from ops.array_types import Feed
from ops.metrics import Sums
from tests.helpers import quantized_models, real_models
from tests.helpers.decoder import WORDS, decoder
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.model.copy_graph import copy_graph
from transforms.origins.loss_origins import find_origins
from transforms.pipelines.in_memory import IN_MEMORY
from transforms.pipelines.options import Options
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.pipelines.steps import run
from transforms.pipelines.work import Work
from transforms.precision.chosen import Part
from transforms.precision.finer_scheme import naming
from transforms.run.run_model import open_model
from transforms.run.samples import Samples
from transforms.scheme import Scheme, preset
from transforms.scheme.layer_rule import LayerRule

FLOAT = LayerRule("float32", "float32")
HALF = 3.0  # dB: half of the squared error


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["mobilenet_v1_025", "yolox_nano_ext", "minilm_l6_op13", "vittrack"])
def test_layers_that_are_named_win_half_of_the_loss(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = real_models.MODELS / name / "model.onnx"
    if not source.exists():
        pytest.skip(f"no real model '{name}' beside the project")
    _check(name, source, quantized_models.calibration_feeds(name), capsys)


@pytest.mark.heavy
def test_the_layer_of_a_decoder_with_a_mask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(decoder(), tmp_path / "decoder.onnx")
    (tmp_path / "texts").mkdir()
    np.save(tmp_path / "texts" / "tokens.npy", np.random.default_rng(0).integers(0, WORDS - 1, (24, 48)))
    inputs = open_model(tmp_path / "decoder.onnx").inputs
    feeds = [feed for _, feed in Samples(tmp_path / "texts", inputs)]
    _check("decoder", tmp_path / "decoder.onnx", feeds, capsys)


def _check(name: str, source: Path, feeds: list[Feed], capsys: pytest.CaptureFixture[str]) -> None:
    middle = max(len(feeds) // 2, 3)
    known, unseen = feeds[:middle][:16], feeds[middle:][-24:]
    graph = model_io.load(source)
    done = run(
        Work(graph, preset("U8S8"), CalibrationData(known), options=Options(keeps_float=True)), IN_MEMORY
    )
    assert done.scheme is not None and done.base.graph is not None
    found = find_origins(copy_graph(done.base.graph), copy_graph(graph), known)
    main, parts = found.main, [one.part for one in found.layers]
    float_run = open_model(source).run

    def _sqnr(quantized: gs.Graph) -> list[float]:
        run, both = open_model(quantized).run, [Sums(), Sums()]
        for sums, some in zip(both, (known, unseen), strict=True):
            for feed in some:
                sums.add(float_run(feed)[main.name], run(feed)[main.name])
        return [sums.sqnr() for sums in both]

    def _in_float(some: Iterable[Part]) -> list[float]:
        assert isinstance(done.scheme, Scheme)
        built, names = model_io.load(source), _names(done.base.graph)
        nodes = (node for part in some for node in part.nodes)
        quantize_graph(built, naming(done.scheme, nodes, names, FLOAT), CalibrationData(known))
        return _sqnr(built)

    before = _sqnr(graph)
    named = [parts[place] for place in main.named]
    after, others = _in_float(named), _in_float(part for part in parts if part not in named)
    with capsys.disabled():
        print(
            f"\n{name}: '{main.name}', {len(named)} of {len(parts)} layers named. SQNR as it is, with those"
        )
        print("in float, with the others in float:")
        rows = [(main.sqnr, main.without, main.others), *zip(before, after, others, strict=True)]
        for where, row in zip(("in the report", "made anew", "on unseen samples"), rows, strict=True):
            print(where, *(f"{value:.2f}" for value in row))
    assert main.without >= main.sqnr + HALF and main.without >= main.others
    assert after[1] >= before[1] + HALF and after[1] > others[1]


def _names(graph: gs.Graph | None) -> set[str]:
    assert graph is not None
    return {node.name or node.outputs[0].name for node in graph.nodes if "_restored" not in node.name}

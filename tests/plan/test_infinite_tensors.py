"""Oracle: the tensors listed here; the outputs of a float model with finite outputs stay finite."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import plans
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.graph import walk
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.plan.infinities import infinite_tensors
from transforms.run.run_model import open_model
from transforms.scheme import preset

MASKED = """(float[4, 16] x, bool[4, 4] b) => (float[4, 16] y)
    <float zero = {{0}}, float low = {{{low}}}> {{
    t = Transpose(x) s = MatMul(x, t) w = Where(b, zero, low) d = Add(s, w) p = Softmax <axis = -1> (d)
    o = MatMul(p, x) y = Tanh(o) }}"""


def _found(low: str) -> set[str]:
    graph = plans.graph(MASKED.format(low=low))
    found = infinite_tensors(graph)
    return {node.outputs[0].name for node in walk.nodes(graph) if id(node.outputs[0]) in found}


def test_masks_and_sums_with_them() -> None:
    assert _found("-inf") == {"w", "d"}
    assert _found("-3e38") == set()


@pytest.mark.parametrize("config", ("MX9", "BFP16", "MXINT8", "MXFP8E4M3"))
def test_no_block_holds_them(config: str) -> None:
    graph = plans.graph(MASKED.format(low="-inf"))
    quantize_graph(graph, preset(config).with_(quantize_all_op_types=True))
    mask = np.tril(np.ones((4, 4), np.bool_))
    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    assert np.isfinite(open_model(graph).run({"x": x, "b": mask})["y"]).all()


@pytest.mark.parametrize("config", ("U8S8", "A8W8", "U16S8"))
@pytest.mark.parametrize("bounds", ("low, top", "bottom, high"))
def test_a_bound_that_is_none_stays_infinite(config: str, bounds: str) -> None:
    """No integer is infinite: as the end of a range it cut off all numbers of one sign."""
    graph = plans.graph(f"""(float[4, 16] x) => (float[4, 16] y)
        <float low = {{-inf}}, float top = {{0.5}}, float bottom = {{-0.5}}, float high = {{inf}}> {{
        s = Sin(x) y = Clip(s, {bounds}) }}""")
    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    scheme = preset(config).by_rule().with_(quantize_all_op_types=True)
    done = quantize_graph(graph, scheme, CalibrationData([{"x": x}]))
    wanted = np.clip(np.sin(x), None, 0.5) if "low" in bounds else np.clip(np.sin(x), -0.5, None)
    assert (
        done.count and np.abs(open_model(graph).run({"x": x})["y"] - wanted).max() < 0.02
    )  # two steps of 1/127


@pytest.mark.parametrize("config", ("MX6", "MXFP4E2M1", "BFP16"))
def test_a_power_of_what_a_block_rounds_to_zero(config: str) -> None:
    graph = plans.graph("""(float[1, 16] x) => (float[1, 16] y) <float e = {-1.1}> {
        a = Exp(x) p = Pow(a, e) y = Add(p, p) }""")
    quantize_graph(graph, preset(config).with_(quantize_all_op_types=True))
    x = np.linspace(-9, 9, 16, dtype=np.float32)[None]
    assert not np.isnan(open_model(graph).run({"x": x})["y"]).any()

"""Files of ranges that contradict the model or themselves. Oracle: the file, and bytes made again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.helpers import build
from tools import quantize

WIDTH = 16
NODES = [
    helper.make_node("MatMul", ["x", "w"], ["h"], "straight"),
    helper.make_node("Relu", ["h"], ["r"], "relu"),
    helper.make_node("Gemm", ["r", "w"], ["g"], "turned", transB=1),
    helper.make_node("Add", ["g", "w"], ["y"], "sum"),
]
"""One square weight with channels along axis 1, along axis 0, and as a number that is added."""


class Bench:
    """A float model, samples, and the tool."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capture = folder, capture
        self.source, self.target, self.data = folder / "m.onnx", folder / "q.onnx", folder / "data"
        random = np.random.default_rng(0)
        weight = random.standard_normal((WIDTH, WIDTH)) * np.geomspace(0.1, 4, WIDTH)
        ends = [build.value(name, [WIDTH, WIDTH]) for name in ("x", "y")]
        onnx.save(build.model(NODES, ends[:1], ends[1:], {"w": weight.astype(np.float32)}), self.source)
        self.data.mkdir()
        for i in range(3):
            np.save(self.data / f"{i}.npy", random.standard_normal((WIDTH, WIDTH)).astype(np.float32))

    def run(self, *options: object, code: int = 0) -> str:
        paths = ["--input", self.source, "--output", self.target, "--force", "--data", self.data, "--fast"]
        assert quantize.main([str(one) for one in (*paths, *options)]) == code
        out, err = self._capture.readouterr()
        assert not code or err.count("\n") == 1
        return out if not code else err

    def change(self, alter: Callable[[dict[str, Any]], object], *options: str) -> Path:
        """Return a file of the model's ranges with something else in it."""
        path = self.folder / "ranges.json"
        self.run("--config", "A8W8", *options, "--export-ranges", path)
        content = json.loads(path.read_text())
        alter(content["tensors"])
        path.write_text(json.dumps(content))
        return path

    def content(self) -> bytes:
        model = onnx.load(self.target)
        del model.metadata_props[:]
        return model.SerializeToString(deterministic=True)


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    return Bench(tmp_path, capsys)


@pytest.mark.parametrize("how", ("--per-channel", "--no-per-channel"))
def test_each_use_of_a_shared_weight_has_its_own_scales_again(how: str, bench: Bench) -> None:
    """The same weight has scales along axis 1, along axis 0, and one for all of it."""
    file = bench.change(lambda tensors: None, how)
    before = bench.content()
    out = bench.run("--config", "A8W8", how, "--ranges", file)
    assert bench.content() == before
    assert "Ranges as given: " in out and "not used" not in out


def test_encodings_have_no_place_for_two_grids(bench: Bench) -> None:
    file = bench.folder / "r.encodings"
    error = bench.run("--config", "A8W8", "--per-channel", "--export-ranges", file, code=1)
    assert "tensor 'w' has several grids, encodings hold one" in error and not file.exists()


def _set(name: str, **values: object) -> Callable[[dict[str, Any]], object]:
    return lambda tensors: tensors[name][0].update(values)


MANY = {"scale": [0.1] * WIDTH, "zero_point": [0] * WIDTH}


@pytest.mark.parametrize(
    ("alter", "message"),
    (
        (_set("x", **MANY, axis=1), f"ranges of 'x': {WIDTH} scales, its quantization has one"),
        (_set("x", **MANY), f"tensor 'x': axis None of {WIDTH} scales is not a whole number from 0"),
        (_set("x", **MANY, axis=True), "tensor 'x': axis True of"),
        (_set("x", axis=0), "tensor 'x': axis 0 of one scale, it has to be null"),
        (_set("x", scale=[0.1]), "tensor 'x': scales: 1, zero points: one"),
        (_set("x", scale=True), "tensor 'x': scale True is not a positive number"),
        (_set("x", scale=1e39), "tensor 'x': scale 1e+39 is not a positive number"),
        (_set("x", seen="ab"), "tensor 'x': seen ab is not a lowest and a highest number"),
        (_set("x", seen=[1, 2, 3]), "tensor 'x': seen [1, 2, 3] is not a lowest and a highest number"),
        (_set("x", seen=[1, float("nan")]), "tensor 'x': seen [1, nan] is not a lowest"),
        (_set("x", role="input"), "tensor 'x': role 'input' is none of activation, weight, constant"),
        (lambda t: t["x"].append(t["x"][0] | {"scale": 1.0}), "tensor 'x': two grids of int8"),
        (lambda t: t.clear(), "no grid of integers is in it"),
    ),
)
def test_files_that_contradict_themselves(
    alter: Callable[[dict[str, Any]], object], message: str, bench: Bench
) -> None:
    file = bench.change(alter)
    assert message in bench.run("--config", "A8W8", "--ranges", file, code=1)


def test_scales_along_another_axis_are_refused(bench: Bench) -> None:
    """Both axes of the weight are of one length."""

    def _turn(tensors: dict[str, Any]) -> None:
        tensors["w"] = [one | {"axis": 0} for one in tensors["w"] if one["axis"] == 1]

    file = bench.change(_turn, "--per-channel")
    error = bench.run("--config", "A8W8", "--per-channel", "--ranges", file, code=1)
    assert "ranges of 'w': scales along axis 0, its quantization has them along 1" in error


def test_what_a_scheme_does_not_use_is_named(bench: Bench) -> None:
    file = bench.change(_set("x", format="uint8", zero_point=128))
    assert "; not used: 'x' in uint8\n" in bench.run("--config", "A8W8", "--ranges", file)


def test_scales_of_a_scheme_with_powers_of_two_stay_powers(bench: Bench) -> None:
    file = bench.change(lambda tensors: [tensors.pop(name) for name in tensors.keys() - {"x"}])
    error = bench.run("--config", "XINT8", "--ranges", file, code=1)
    assert "ranges of 'x': a scale is not a power of two, as the scheme asks" in error


@pytest.mark.parametrize("count", [2, 3, 4])
def test_dots_stand_for_what_is_not_named(count: int, bench: Bench) -> None:
    def _add(tensors: dict[str, Any]) -> None:
        formats = [{"format": f"uint{bits}", "zero_point": 1 << bits - 1} for bits in (8, 16)]
        others = [(tensors[name], one) for name in "xr" for one in formats]
        for grids, one in others[:count]:
            grids.append(grids[0] | one)

    out = bench.run("--config", "A8W8", "--ranges", bench.change(_add))
    unused = out.partition("; not used: ")[2].splitlines()[0]
    assert (unused.count(" in uint") < count) == unused.endswith(", ...")

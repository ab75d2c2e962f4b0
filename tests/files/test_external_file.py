"""Data of a model are found by links in its folder, never by a path of the model that leaves it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers import build
from tools import convert_fp32_to_bf16, infer, quantize
from transforms import model_io
from transforms.files.external_file import external_file
from transforms.runtime.session import open_session


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """A folder "m" with a file, links to a file and a folder beside it, and one to nowhere."""
    (tmp_path / "m" / "sub").mkdir(parents=True)
    (tmp_path / "far").mkdir()
    for path in ("m/own", "m/sub/own", "far/data", "secret"):
        (tmp_path / path).write_text(path)
    links = {"link": "../far/data", "up": "../far", "gone": "../nowhere", "loop": "loop"}
    for link, target in {**links, "out": "/etc/hostname", "etc": "/etc"}.items():
        (tmp_path / "m" / link).symlink_to(target)
    return tmp_path


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("own", "m/own"),
        ("sub/own", "m/sub/own"),
        ("sub/../own", "m/own"),
        ("../m/own", "m/own"),
        ("link", "far/data"),
        ("up/data", "far/data"),
    ],
)
def test_names_in_the_folder(scene: Path, location: str, expected: str) -> None:
    assert external_file(scene / "m" / "model.onnx", location) == scene / expected


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("../secret", "lies outside the folder of"),
        ("sub/../../secret", "lies outside the folder of"),
        ("up/../secret", "lies outside the folder of"),
        ("/etc/hostname", "absolute path, which lies outside the folder of"),
        ("out", "neither in nor beside its folder: put a copy"),
        ("etc/hostname", "neither in nor beside its folder: put a copy"),
        ("other", "is missing beside"),
        ("gone", "nowhere', which does not exist"),
        ("loop", "is a link to"),
        ("sub", "is not a regular file"),
        ("", "is not a regular file"),
        ("a\0b", "not a legal path"),
    ],
)
def test_names_of_no_file_in_the_folder(scene: Path, location: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        external_file(scene / "m" / "model.onnx", location)


def test_the_folder_is_that_of_the_link_to_a_model(scene: Path) -> None:
    """As for ONNX Runtime: beside the target nothing is looked for, and the message names it."""
    (scene / "far" / "model.onnx").touch()
    (scene / "m" / "model.onnx").symlink_to("../far/model.onnx")
    assert external_file(scene / "m" / "model.onnx", "own") == scene / "m" / "own"
    with pytest.raises(ValueError, match=f"a link to '{scene}/far/model.onnx'"):
        external_file(scene / "m" / "model.onnx", "data")


@pytest.fixture(params=["both", "data"])
def cached(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A model as in the cache of huggingface_hub, and one of which the data alone are a link."""
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshots" / "0123"
    blobs.mkdir()
    folder.mkdir(parents=True)
    build.save_external(build.dense(256, layers=2), blobs / "model.onnx", "model.onnx_data")
    for name in ("model.onnx_data", *(["model.onnx"] if request.param == "both" else [])):
        (blobs / name).rename(blobs / name[-4:])
        (folder / name).symlink_to(f"../../blobs/{name[-4:]}")
    if request.param == "data":
        (blobs / "model.onnx").rename(folder / "model.onnx")
    return folder / "model.onnx"


def test_a_model_in_a_cache_of_links(cached: Path, tmp_path: Path) -> None:
    """Oracle: the same model in one file. The digest and the protected files are those of the data."""
    graph, whole = model_io.load(cached), build.dense(256, layers=2)
    assert model_io.graph_proto.export_model(graph) == model_io.graph_proto.export_model(model_io.load(whole))
    assert [Path(os.path.realpath(file)) for file in graph.source_files][1:] == [tmp_path / "blobs" / "data"]
    feed = {"x": np.ones((1, 256), np.float32)}
    runs = [open_session(source).run(feed) for source in (cached, build.save(whole, tmp_path / "whole.onnx"))]
    for first, second in zip(*(run.values() for run in runs), strict=True):
        np.testing.assert_array_equal(first, second)


def test_tools_on_a_cache_of_links(cached: Path, tmp_path: Path) -> None:
    """A folder is converted, too; what is written has data of its own, and no blob is ever an output."""
    out, blobs = tmp_path / "out", {p: p.read_bytes() for p in (tmp_path / "blobs").iterdir()}
    assert quantize.main(["--input", str(cached.parent), "--output", str(out), "--config", "W8"]) == 0
    onnx.checker.check_model(out / "model.onnx", full_check=True)
    data = tmp_path / "data"
    data.mkdir()
    np.save(data / "a.npy", np.ones((1, 256), np.float32))
    words = ["--model", str(cached), "--data", str(data), "--output_dir", str(tmp_path / "results")]
    assert infer.main(words) == 0
    words = ["--input", str(cached), "--output", str(tmp_path / "blobs" / "data"), "--force"]
    assert convert_fp32_to_bf16.main(words) == 1
    assert blobs == {path: path.read_bytes() for path in (tmp_path / "blobs").iterdir()}

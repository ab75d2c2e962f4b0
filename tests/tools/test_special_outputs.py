"""Outputs that are no regular file are refused before any work; links stay, and their ends are replaced.

Oracle: the kind of the file before and after, and the bytes at the end of the link. The input of the tools is
rubbish where the output must be refused: an error that speaks of the output shows that it was not read.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnx_narrow.api.usage import refuse_same_file
from tests.helpers import build
from tests.helpers.refusal import Scene
from transforms import model_io
from transforms.calibrate.cache import calibrate_cached
from transforms.files.cleanup import destination, replacing
from transforms.files.output_file import check_writable, write_array, write_text
from transforms.files.spelling import UsageError


def bind(path: Path) -> None:
    """Make a socket, whose path must be short."""
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


SPECIAL: dict[str, tuple[Callable[[Path], object], str]] = {
    "folder": (lambda path: path.mkdir(), "is a folder, not a file"),
    "fifo": (os.mkfifo, "is a pipe, not a file"),
    "device": (lambda path: path.symlink_to("/dev/null"), "is a device, not a file"),
    "socket": (bind, "is a socket, not a file"),
    "link to a fifo": (
        lambda path: (os.mkfifo(path.with_name("fifo")), path.symlink_to("fifo")),
        "is a pipe, not a file",
    ),
    "circle": (lambda path: path.symlink_to(path.name), "symbolic links"),
    "link into nowhere": (lambda path: path.symlink_to("nowhere/m.onnx"), "which does not exist"),
}
MESSAGES = pytest.mark.parametrize("kind", SPECIAL)


@MESSAGES
def test_converters(scene: Scene, kind: str) -> None:
    make, words = SPECIAL[kind]
    scene.write(b"not a model")
    make(scene.target)
    assert words in scene.refused("--force")


def others(path: Path) -> list[Callable[[], object]]:
    """Return what writes, or looks whether it can be written, for outputs that are no model."""
    return [
        lambda: check_writable(path, force=True),
        lambda: write_text(path, "text"),
        lambda: write_array(path, np.zeros(2)),
        lambda: calibrate_cached(path, model_io.load(build.dense(4)), ["x"], None),  # type: ignore[arg-type]
        lambda: model_io.save(model_io.load(build.dense(4)), path),
    ]


@MESSAGES
def test_every_writer(tmp_path: Path, kind: str) -> None:
    make, words = SPECIAL[kind]
    path = tmp_path / "output"
    make(path)
    before = path.lstat().st_mode, sorted(tmp_path.iterdir())
    for write in others(path):
        with pytest.raises((ValueError, OSError), match=words):
            write()
        assert (path.lstat().st_mode, sorted(tmp_path.iterdir())) == before


def test_the_null_device_stays_a_device() -> None:
    with pytest.raises(ValueError, match="'/dev/null' is a device, not a file"), replacing(Path("/dev/null")):
        pass
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@pytest.mark.parametrize("dangling", (False, True))
@pytest.mark.parametrize("absolute", (False, True))
def test_links_are_written_through(tmp_path: Path, dangling: bool, absolute: bool) -> None:
    (tmp_path / "far").mkdir()
    end, middle, link = tmp_path / "far" / "end", tmp_path / "middle", tmp_path / "link"
    if not dangling:
        end.write_text("old")
    middle.symlink_to(end if absolute else "far/end")
    link.symlink_to(middle if absolute else "middle")
    assert destination(link) == end
    write_text(link, "new")
    assert link.is_symlink() and middle.is_symlink() and end.read_text() == "new"
    assert {path.name for path in tmp_path.iterdir()} == {"far", "middle", "link"}
    assert [path.name for path in (tmp_path / "far").iterdir()] == ["end"]


@pytest.mark.parametrize("dangling", (False, True))
def test_a_model_and_its_data_through_a_link(tmp_path: Path, dangling: bool) -> None:
    link, end = tmp_path / "link.onnx", tmp_path / "end.onnx"
    if not dangling:
        model_io.save(model_io.load(build.dense(256, seed=1)), end, external_data=True)
    link.symlink_to(end.name)
    files = model_io.save(model_io.load(build.dense(256, seed=2)), link, external_data=True)
    assert files[0] == link and link.is_symlink() and not end.is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"link.onnx", "end.onnx", files[1].name}
    (expected,) = build.dense(256, seed=2).graph.initializer
    for path in (link, end):
        assert onnx.load(path).graph.initializer[0].raw_data == expected.raw_data


def test_data_that_would_not_lie_beside_the_link(scene: Scene) -> None:
    scene.write(b"not a model")
    (scene.folder / "far").mkdir()
    scene.target.symlink_to(scene.folder / "far" / "end.onnx")
    assert "external data" in scene.refused("--save_as_external_data")
    scene.write()
    assert scene.convert() == (0, "")
    assert scene.target.is_symlink() and (scene.folder / "far" / "end.onnx").is_file()


def test_a_link_that_exists_takes_force(scene: Scene) -> None:
    scene.write()
    end = scene.target.with_name("end.onnx")
    end.write_bytes(b"precious")
    scene.target.symlink_to(end.name)
    assert "--force" in scene.refused()
    assert scene.convert("--force") == (0, "")
    assert scene.target.is_symlink() and end.read_bytes() != b"precious"


def test_a_deleted_file_behind_a_link_of_the_system(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        (tmp_path / "file").unlink()
        with pytest.raises(ValueError, match="cannot be replaced"):
            destination(Path(f"/proc/self/fd/{file.fileno()}"))


def test_two_options_on_a_circle_of_links(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("a")
    refuse_same_file({"json": tmp_path / "a", "csv": tmp_path / "b"}, "json", "csv")
    with pytest.raises(UsageError, match="json and csv are the same file"):
        refuse_same_file({"json": tmp_path / "a", "csv": tmp_path / "a"}, "json", "csv")

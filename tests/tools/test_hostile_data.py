"""Samples, schemes and caches that are damaged, or far larger than they look: one error that names the file.

Oracle: what was written, and the clock.
"""

from __future__ import annotations

import io
import struct
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.helpers import build
from tests.helpers.bombs import folded
from tools import infer, quantize
from transforms.files.named_file import named
from transforms.run.array_files import MOST_PIXELS, read_array
from transforms.run.feeds import open_feeds
from transforms.runtime.inputs import ModelInput
from transforms.scheme import preset, read_scheme

FREE = (ModelInput("x", np.dtype(np.float32), (None,)),)
GIGABYTES = 5 << 30


@pytest.fixture(autouse=True)
def clock() -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < 10


def header(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    """Return the header of a .npy file."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def write_bomb(path: Path, size: int, start: bytes) -> None:
    """Write an archive whose member unpacks to ``size`` bytes that begin with ``start``, without making them.

    Zeros are deflated a block at a time, and a block that was flushed can be repeated.
    """
    block = 1 << 24
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    zeros = packer.compress(bytes(block)) + packer.flush(zlib.Z_FULL_FLUSH)
    count = (size - len(start)) // block
    end = zlib.compressobj(9, zlib.DEFLATED, -15).flush()
    data = first + zeros * count + end
    total = len(start) + count * block
    name, form = b"x.npy", struct.Struct("<HHHHHIIIHH")
    extra = struct.pack("<HHQQ", 1, 16, total, len(data))
    fields = (45, 0, 8, 0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF, len(name), len(extra))
    local = b"PK\3\4" + form.pack(*fields) + name + extra + data
    central = b"PK\1\2" + struct.pack("<H", 45) + form.pack(*fields)
    central += struct.pack("<HHHII", 0, 0, 0, 0, 0) + name + extra
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)
    path.write_bytes(local + central + end)


def refused(folder: Path, inputs: tuple[ModelInput, ...] = FREE) -> str:
    """Return the message with which the samples of a folder are refused; it names the one file there."""
    with pytest.raises((ValueError, OSError)) as caught:
        list(open_feeds(folder, inputs))
    names = [path.name for path in folder.iterdir()]
    assert any(name in str(caught.value) for name in names), caught.value
    return str(caught.value)


@pytest.mark.parametrize("shape", [(GIGABYTES // 4 - 4096,), (4,), (1 << 40,)], ids=str)
def test_member_that_unpacks_to_gigabytes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    write_bomb(tmp_path / "a.npz", GIGABYTES, header(shape))
    assert (tmp_path / "a.npz").stat().st_size < 6_000_000
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        assert archive.infolist()[0].file_size > 0.99 * GIGABYTES
    assert "array 'x'" in refused(tmp_path)


def test_member_that_does_not_fit_the_model_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3), np.float32))
    monkeypatch.setattr(np, "load", lambda *args, **kwargs: pytest.fail("it was read"))
    assert "shape [2, 3] instead of [?]" in refused(tmp_path)


def test_ordinary_zeros_may_be_packed_tightly(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1 << 20, np.float32))
    assert [feed["x"].size for _, feed in open_feeds(tmp_path, FREE)] == [1 << 20]


@pytest.mark.parametrize("shape", [(1 << 40,), (1 << 62, 4), (-4,), (2, -3)], ids=str)
def test_npy_that_claims_what_it_does_not_hold(tmp_path: Path, shape: tuple[int, ...]) -> None:
    (tmp_path / "a.npy").write_bytes(header(shape) + bytes(64))
    refused(tmp_path)
    with pytest.raises(ValueError, match=r"a\.npy' cannot be read"):
        read_array(tmp_path / "a.npy")


def test_npy_that_is_a_hole(tmp_path: Path) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        file.write(header(((1 << 40) // 4,)))
        file.truncate((1 << 40) + 4096)
    assert "stored bytes expand to" in refused(tmp_path)


def _encrypt(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\3\4") + 6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)


def _set_method(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\3\4") + 8] = data[data.index(b"PK\1\2") + 10] = 99
    path.write_bytes(data)


def _garble(path: Path) -> None:
    data = bytearray(path.read_bytes())
    start = data.index(b"x.npy") + 40
    data[start : start + 40] = b"\xff" * 40
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [_encrypt, _set_method, _garble])
def test_damaged_archive(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(1000, dtype=np.float32))
    damage(tmp_path / "a.npz")
    assert refused(tmp_path).startswith(f"'{tmp_path / 'a.npz'}' cannot be read: ")


def _png(width: int, height: int) -> bytes:
    """Return a valid picture of zeros, whatever its size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes((width + 1) * min(height, 16)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [11_600, 13_000, 20_000, 60_000])
def test_picture_of_too_many_pixels(
    tmp_path: Path, side: int, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    assert side * side > MOST_PIXELS
    (tmp_path / "a.png").write_bytes(_png(side, side))
    image = (ModelInput("x", np.dtype(np.float32), (1, 1, 4, 4)),)
    assert "pixels" in refused(tmp_path, image)
    with pytest.raises(ValueError, match=r"a\.png' cannot be read: .*pixels"):
        read_array(tmp_path / "a.png")
    assert not recwarn.list and not capfd.readouterr().err


def test_picture_that_would_start_a_program(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\n")
    with pytest.raises(ValueError, match="cannot identify image"):
        read_array(tmp_path / "a.png")


def test_damaged_pictures(tmp_path: Path) -> None:
    """Every prefix and every changed byte of a small picture is read, or refused with its name."""
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(tmp_path / "good.png")
    whole = (tmp_path / "good.png").read_bytes()
    for i in range(0, len(whole), 2):
        for content in (whole[:i], whole[:i] + b"\xa5" + whole[i + 1 :]):
            (tmp_path / "a.png").write_bytes(content)
            try:
                read_array(tmp_path / "a.png")
            except ValueError as error:
                assert str(error).startswith(f"'{tmp_path / 'a.png'}' cannot be read: ")


# Schemes


def test_scheme_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "scheme.toml"
    path.write_bytes(b'\xef\xbb\xbfpreset = "A8W8"\n')
    assert read_scheme(path) == preset("A8W8")


DEEP = 20_000
SCHEMES = {
    "arrays": "activation = " + "[" * DEEP,
    "tables": "activation = " + "{a = " * DEEP,
    "keys": "layers." + "a." * DEEP + "a = 1",
    "unknown keys": "a." * DEEP + "a = 1",
    "hexadecimal": f'preset = "A8W8"\npercentile = 0x{"f" * 8000}',
    "decimal": f'preset = "A8W8"\npercentile = {"9" * 8000}',
    "zero byte": 'preset = "A8W8\0"',
}


@pytest.mark.parametrize("kind", SCHEMES)
def test_hostile_scheme(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scheme.toml"
    path.write_text(SCHEMES[kind])
    with pytest.raises(ValueError, match=r"scheme\.toml: ") as caught:
        read_scheme(path)
    assert "Error" not in str(caught.value) or "(" in str(caught.value)
    assert quantize.main(["--config", str(path), "--print-config"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith(f"tools.quantize: error: {path}: ")


def test_endless_scheme(tmp_path: Path) -> None:
    with (tmp_path / "scheme.toml").open("wb") as file:
        file.truncate(1 << 36)
    with pytest.raises(ValueError, match=r"scheme\.toml: 68,719,476,736 bytes"):
        read_scheme(tmp_path / "scheme.toml")


def test_deep_value_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert quantize.main(["--config", "A8W8", "--print-config", "--set", "layers=" + "[" * DEEP]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


# What the command line makes of it


def test_names_can_not_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = folded([], [])
    built.graph.node[0].input[0] = "gone\x1b[2J\x1b]0;title\x07\r\nDone.\u2028\u202e"
    path = build.save(built, tmp_path / "model.onnx")
    code = infer.main(["--model", str(path), "--data", str(tmp_path), "--output_dir", str(tmp_path / "out")])
    text = capsys.readouterr().err
    assert code == 1 and text.count("\n") == 1 and text[:-1].isprintable()


def test_long_names_are_shortened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = folded([], [])
    built.graph.initializer[0].name = "n" * 1_000_000
    built.graph.initializer[0].dims[:] = [3]
    path = build.save(built, tmp_path / "model.onnx")
    assert quantize.main(["--config", "A8W8", "--input", str(path), "--output", str(tmp_path / "out")]) == 1
    assert len(capsys.readouterr().err) < 5000


@pytest.mark.parametrize("place", ["--input", "--config", "--data"])
def test_zero_byte_in_a_path(tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = build.save(build.dense(), tmp_path / "model.onnx")
    options = {"--config": "A8W8", "--input": str(path), "--output": str(tmp_path / "out.onnx")}
    options |= {"--data": str(tmp_path)} | {place: "some\0thing"}
    assert quantize.main([word for pair in options.items() for word in pair]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and r"some\x00thing" in lines[0]


def test_errors_without_words_are_named(tmp_path: Path) -> None:
    for error in (RuntimeError("odd"), KeyError("odd"), zlib.error("odd"), AssertionError()):
        with (
            pytest.raises(ValueError, match=rf"'a' cannot be read: .*\({type(error).__name__}\)"),
            named("a"),
        ):
            raise error
    with pytest.raises(ValueError, match=r"'a' cannot be read: it is nested too deeply"), named("a"):
        raise RecursionError


def test_errors_of_the_runtime_name_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = build.dense()
    built.graph.node[1].op_type, built.graph.node[1].domain = "NoSuchOperator", "nowhere"
    path = build.save(built, tmp_path / "model.onnx")
    for tool, words in (
        (
            quantize,
            ["--config", "A8W8", "--random-data", "1", "--input", path, "--output", tmp_path / "out.onnx"],
        ),
        (infer, ["--model", path, "--data", tmp_path, "--output_dir", tmp_path / "out"]),
    ):
        assert tool.main([str(word) for word in words]) == 1
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1 and str(path) in lines[0]


def test_patterns_that_take_long_to_translate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = build.save(build.dense(), tmp_path / "model.onnx")
    (tmp_path / "scheme.toml").write_text('preset = "MX9"\n[layers]\n"' + "[" * 50_000 + '" = "mx6"')
    options = ["--config", str(tmp_path / "scheme.toml"), "--input", str(path)]
    assert quantize.main([*options, "--output", str(tmp_path / "out.onnx")]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_cache_that_has_no_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = build.save(build.dense(), tmp_path / "model.onnx")
    (tmp_path / "ranges.json").symlink_to("/dev/zero")
    options = ["--config", "A8W8", "--input", path, "--output", tmp_path / "out.onnx", "--random-data", "1"]
    np.save(tmp_path / "a.npy", np.ones((1, 16), np.float32))
    options = [*options[:-2], "--calibration-data", tmp_path, "--calibration-cache", tmp_path / "ranges.json"]
    assert quantize.main([str(word) for word in options]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].endswith("ranges.json' is a device, not a file")

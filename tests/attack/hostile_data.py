"""Hostile samples, schemes, caches and results, a function of a random generator each."""

from __future__ import annotations

import io
import os
import pickle
import struct
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np

from tests.attack.hostile_case import Case, Random, huge, on_data, pick
from tests.attack.hostile_graphs import NAMES
from tests.attack.valid_files import quantized
from tests.helpers import build


def header(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    """Return the header of a .npy file, whatever it claims."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def write_bomb(path: Path, size: int, start: bytes) -> None:
    """Write an archive whose member ``x`` unpacks to about ``size`` bytes that begin with ``start``.

    The zeros are never made: a block of them is deflated once, flushed, and repeated.
    """
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    zeros = packer.compress(bytes(1 << 24)) + packer.flush(zlib.Z_FULL_FLUSH)
    count = max(1, (size - len(start)) >> 24)
    data = first + zeros * count + zlib.compressobj(9, zlib.DEFLATED, -15).flush()
    total, name, form = len(start) + (count << 24), b"x.npy", struct.Struct("<HHHHHIIIHH")
    extra = struct.pack("<HHQQ", 1, 16, total, len(data))
    fields = (45, 0, 8, 0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF, len(name), len(extra))
    local = b"PK\3\4" + form.pack(*fields) + name + extra + data
    central = b"PK\1\2" + struct.pack("<H", 45) + form.pack(*fields)
    central += struct.pack("<HHHII", 0, 0, 0, 0, 0) + name + extra
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)
    path.write_bytes(local + central + end)


_A8W8 = 'preset = "A8W8"\n'


class _Runs:
    """An object that runs a command when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self._place),)


def _zip_bomb(folder: Path, random: Random) -> Case:
    (folder / "data").mkdir()
    size = 1 << int(random.integers(28, 35))
    shape = pick(((size // 64 - 64, 16), (2, 16), (1 << 40, 16), (1 << 62, 16)), random)
    write_bomb(folder / "data" / "a.npz", size, header(shape))
    return on_data(folder, random, ["a.npz"], must_fail=shape != (2, 16))


def _npy_claims(folder: Path, random: Random) -> Case:
    (folder / "data").mkdir()
    shape = (huge(random, 20), 16) if random.random() < 0.7 else (-huge(random, 1), 16)
    dtype = str(pick(("<f4", ">f4", "<f8", "|O", "<c16", "<U1000000", "<M8[s]", "|V9999999"), random))
    with (folder / "data" / "a.npy").open("wb") as file:
        file.write(header(shape, dtype) + bytes(64))
        if random.random() < 0.3:
            file.truncate(1 << int(random.integers(30, 40)))
    return on_data(folder, random, ["a.npy"])


def _npy_header(folder: Path, random: Random) -> Case:
    """A header that is no dictionary of three, or is as long as it likes."""
    text = pick((b"(" * 5000, b"[" * 9000, b"{'descr': '<f4'}", b"__import__('os').mkdir('ran')", b"{" * 900,
                 b"{'descr': '<f4', 'fortran_order': False, 'shape': (2.5, 16)}", b"9" * 9000, b"-" * 9000,
                 b"{'descr': [('a', '<f4')] * 9, 'fortran_order': False, 'shape': (2, 16)}", b"\0" * 50),
                random)  # fmt: skip
    (folder / "data").mkdir()
    version = pick((b"\1\0", b"\2\0", b"\3\0", b"\7\0"), random)
    length = struct.pack("<H" if version == b"\1\0" else "<I", len(text))
    (folder / "data" / "a.npy").write_bytes(b"\x93NUMPY" + version + length + text + bytes(128))
    return on_data(folder, random, ["a.npy"])


def _pickle(folder: Path, random: Random) -> Case:
    (folder / "data").mkdir()
    runs = _Runs(folder.parent / "ran")
    array = np.array([runs], object)
    if random.random() < 0.3:
        (folder / "data" / "a.npy").write_bytes(pickle.dumps(runs))
        return on_data(folder, random, ["a.npy"])
    if random.random() < 0.5:
        np.save(folder / "data" / "a.npy", array, allow_pickle=True)
        return on_data(folder, random, ["a.npy"])
    np.savez(folder / "data" / "a.npz", x=array)
    return on_data(folder, random, ["a.npz"])


def _zip_odd(folder: Path, random: Random) -> Case:
    """Members that are named badly, twice, encrypted, or are no arrays."""
    (folder / "data").mkdir()
    path = folder / "data" / "a.npz"
    file = io.BytesIO()
    np.save(file, np.ones((2, 16), np.float32))
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")  # a name twice is meant
        for _ in range(int(random.integers(1, 4))):
            name = str(pick(("x.npy", "x", "../x.npy", "/x.npy", *(f"{n}.npy" for n in NAMES)), random))
            archive.writestr(name[:60_000] or "x.npy", pick((file.getvalue(), b"", b"text"), random))
    data = bytearray(path.read_bytes())
    kind = int(random.integers(0, 5))
    place, other = data.index(b"PK\3\4"), data.index(b"PK\1\2")
    if kind == 0:
        data[place + 6] |= 1
        data[other + 8] |= 1
    elif kind == 1:
        data[place + 8] = data[other + 10] = int(pick((1, 12, 14, 99), random))
    elif kind == 2:
        data[other + 20 : other + 28] = random.bytes(8)
    path.write_bytes(data)
    return on_data(folder, random, ["a.npz"], must_fail=False)


def _links(folder: Path, random: Random) -> Case:
    """Links, folders and devices in the guise of samples."""
    data = folder / "data"
    data.mkdir()
    target = pick(
        ("/dev/zero", "/dev/full", "a.npy", "..", "gone", "../../secret.data", "/etc/hostname"), random
    )
    (data / "a.npy").symlink_to(str(target))
    if random.random() < 0.3:
        (data / "b.npy").mkdir()
    if random.random() < 0.3:
        os.mkfifo(data / "c.npz")
    return on_data(folder, random, ["a.npy", "/data'"])


def _file_names(folder: Path, random: Random) -> Case:
    """Samples whose names break lines, terminals, sorting, or the results that are named after them."""
    data = folder / "data"
    data.mkdir()
    names = ["a\nb", "\x1b[2J", "-rf", "9" * 200, "\udcff\udc80", "²", ".", "a'b", "*", "CON", "…", "ﬁ"]
    for _ in range(int(random.integers(1, 4))):
        array = np.ones((2, 16 if random.random() < 0.7 else 15), np.float32)
        np.save(data / f"{pick(names, random)}.npy", array)
    return on_data(folder, random, ["sample", "data"], must_fail=False)


def _pictures(folder: Path, random: Random) -> Case:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    (folder / "data").mkdir()
    width, height = (1 << int(n) for n in random.integers(1, 32, 2))
    head = struct.pack(
        ">IIBBBBB", width, height, int(pick((1, 8, 16), random)), int(pick((0, 2, 3, 6), random)), 0, 0, 0
    )
    text = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 26))) if random.random() < 0.3 else b""
    rows = zlib.compress(bytes(1 << int(random.integers(4, 27))))
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + text + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    if random.random() < 0.2:
        content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 99999 99999\n%%EndComments\nshowpage\n"
    (folder / "data" / "a.png").write_bytes(content)
    case = on_data(folder, random, ["a.png"], must_fail=False)
    x = [build.value("x", ["n", 3, "h", "w"])]
    node = build.helper.make_node("Relu", ["x"], ["y"])
    model = build.model([node], x, [build.value("y", ["n", 3, "h", "w"])])
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return case


def _scheme(folder: Path, random: Random) -> Case:
    deep = int(pick((50, 500, 5000, 50_000), random))
    text = pick((
        "activation = " + "[" * deep, "activation = " + "{a=" * deep, "layers." + "a." * deep + "b = 1",
        "[" + "a." * deep + "b]\n", _A8W8 + "".join(f'[layers."{i}"]\n' for i in range(deep // 5)),
        f'preset = "A8W8"\npercentile = 0x{"f" * deep}', f'preset = "A8W8"\npercentile = {"9" * deep}',
        'preset = "../../x"', 'preset = "A8W8"\nexclude_nodes = ["' + "*a" * min(deep, 500) + '"]',
        _A8W8 + '[layers]\n"' + "[" * deep + '" = "int8"', _A8W8 + '[formats]\n"\\u0000" = 1',
        'preset = "A8W8"\n[auto_mixed_precision]\nevaluate = "/etc/passwd:f"', "\ufeff\ufeff", "\0" * deep,
        'preset = "A8W8"\npercentile = nan', _A8W8 + "averaging_constant = 1e400", "a" * deep, '"' * deep,
        _A8W8 + '[formats]\nm = { base = "bfp16", block_size = 9223372036854775807 }\n[layers]\nMatMul = "m"',
    ), random)  # fmt: skip
    (folder / "scheme.toml").write_text(str(text), encoding="utf-8")
    (folder / "model.onnx").write_bytes(build.dense().SerializeToString())
    options = (
        "--config IN/scheme.toml --input IN/model.onnx --output OUT/result.onnx --random-data 1 --threads 1"
    )
    return Case("quantize", options, ["scheme.toml", "model.onnx", "no node name matches", "layers entry"])


def _cache(folder: Path, random: Random) -> Case:
    """A cache that is deep, endless, a device or an archive."""
    deep = int(pick((100, 10_000, 1_000_000), random))
    place = folder / "ranges.json"
    content = pick((b"[" * deep, b'{"a":' * deep, b"9" * deep, b'{"format": "onnx-narrow calibration 3"}',
                    b'{"format": "onnx-narrow calibration 3", "entries": {"k": {"x": {}}}}', b"\0" * deep,
                    quantized()["ranges.json"].replace(b"0.", b"1e999"), b"\xff\xfe" * 50),
                   random)  # fmt: skip
    if random.random() < 0.2:
        place.symlink_to(str(pick(("/dev/zero", "ranges.json", "/etc/hostname"), random)))
    else:
        place.write_bytes(content)
    (folder / "data").mkdir()
    np.save(folder / "data" / "a.npy", np.ones((2, 16), np.float32))
    (folder / "model.onnx").write_bytes(build.dense().SerializeToString())
    options = "--config A8W8 --input IN/model.onnx --output OUT/result.onnx --threads 1 "
    options += "--calibration-data IN/data --calibration-cache IN/ranges.json"
    return Case("quantize", options, ["ranges.json", "/dev/zero"])


def _results(folder: Path, random: Random) -> Case:
    for side in ("first", "second"):
        (folder / side).mkdir()
        np.save(folder / side / "a.npy", np.ones((2, 16), np.float32))
    place = folder / "second" / "a.npy"
    shape = pick(((huge(random, 20), 16), (2, 16), (1 << 62, 4), (0, 16), ()), random)
    dtype = str(pick(("<f4", "<f8", "|b1", "<c8", "<U4", "<i8"), random))
    place.write_bytes(header(shape, dtype) + bytes(64))
    options = "--baseline_results_folder IN/first --quantized_results_folder IN/second --json OUT/result.json"
    return Case("evaluate", options, ["a.npy"], written=("result.json",))


KINDS = (
    _zip_bomb, _npy_claims, _npy_header, _pickle, _zip_odd, _links, _file_names, _pictures, _scheme, _cache,
    _results,
)  # fmt: skip

"""Models and their external data behind links of all kinds, through every tool that reads models."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from tests.attack.draft import Random
from tests.attack.graphs.distances import difference
from tests.attack.graphs.tool_runs import Fallen, call, run, say
from tests.attack.tool_run import fingerprint
from tests.attack.tried import Tries
from tests.helpers import build

_SECRET = b"not yours "
_TOOLS: tuple[tuple[str, ...], ...] = (
    *(("quantize", "--config", "W8"), ("quantize", "--config", "MX9", "--storage", "packed")),
    *(("convert_fp32_to_bf16",), ("convert_fp32_to_bf16", "--format", "simulate_bf16")),
    *(("infer",), ("inspect",)),
)


@dataclass(frozen=True)
class Layout:
    """Where a model lies, and whether a tool has to take it, has to refuse it, or (None) may do either;
    a refusal holds one of the words."""

    path: Path
    is_taken: bool | None
    words: Sequence[str]


def attack(seed: int, folder: Path) -> str | None:
    """Run tools on the model of a seed; return None, or what fell in one line."""
    rng = np.random.default_rng([seed, 17])
    root = folder / "root"
    root.mkdir()
    (folder / "secret.data").write_bytes(_SECRET * 1000)
    model = build.dense(16, layers=2, seed=seed)
    make = LAYOUTS[int(rng.integers(len(LAYOUTS)))]
    layout = make(root, model, rng)
    plain = folder / "plain"
    plain.mkdir()
    build.save(model, plain / "model.onnx")
    np.savez(plain / "x.npz", x=rng.standard_normal((2, 16)).astype(np.float32))
    tries = Tries(plain / "model.onnx")
    before = fingerprint(root)
    for i in rng.choice(len(_TOOLS), 3, replace=False):
        tool, *options = _TOOLS[int(i)]
        what = f"{' '.join([tool, *options])} on {make.__name__.strip('_')}"
        tries.attempt(what, _tried, tries, layout, tool, options, folder)
    if fingerprint(root) != before:
        tries.fallen.append(f"{make.__name__}: the input changed")
    return tries.failure


def _tried(tries: Tries, layout: Layout, tool: str, options: Sequence[str], folder: Path) -> None:
    """A tool does with a model what it does with its plain copy, or says why it does not."""
    is_taken, reason = layout.is_taken, None
    if tool == "inspect" and is_taken is False:
        is_taken = None  # it says of the data that it is missing, and what the model holds beside it
    if tool in ("infer", "inspect"):
        code, said = _say(tool, layout.path, folder)
        reason = said if code else None
        if not code and is_taken and said != _say(tool, tries.source, folder)[1]:
            raise Fallen("not the results of the plain copy")
    else:
        output = folder / "out.onnx"
        done = call(tool, layout.path, output, *options)
        reason = done.refusal
        if done.model is not None:
            right = call(tool, tries.source, folder / "right.onnx", *options)
            assert right.model is not None
            with np.load(tries.folder / "x.npz") as feeds:
                feed = dict(feeds)
            wrong = difference(run(done.model, feed), run(right.model, feed))
            if wrong and is_taken is not False:
                raise Fallen(f"not what the plain copy becomes: {wrong}")
        leaked = [path for path in folder.glob("out*") if path.is_file() and _SECRET in path.read_bytes()]
        if leaked:
            raise Fallen("a file outside of the folder was read")
    if reason is None and is_taken is False:
        raise Fallen("was taken")
    if reason is not None and is_taken:
        raise Fallen(f"was refused: {reason}")
    if reason is not None and not any(word in reason for word in layout.words):
        raise Fallen(f"the refusal has none of the words {list(layout.words)}: {reason}")
    tries.notes.append(f"{tool}: {'done' if reason is None else 'refused'}")


def _say(tool: str, path: Path, folder: Path) -> tuple[int, str]:
    """Return the exit code and what a tool says or writes, without the names of places."""
    if tool == "inspect":
        code, said = say(tool, str(path), "--json")
        return code, said if code else str('"sparse"' in said)
    output = folder / f"results_{path.parent.name}"
    data = folder / "plain_data"
    data.mkdir(exist_ok=True)
    np.savez(data / "x.npz", x=np.ones((2, 16), np.float32))
    code, said = say(tool, "--input", str(path), "--output", str(output), "--data", str(data), "--force")
    return code, said if code else str(np.load(output / "x.npy").tolist())


def _opens(path: Path) -> bool:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception:
        return False
    return True


def _stored(
    folder: Path, model: onnx.ModelProto, name: str = "model.onnx", data: str = "model.onnx_data"
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return build.save_external(onnx.ModelProto.FromString(model.SerializeToString()), folder / name, data)


def _link(path: Path, target: Path, rng: Random) -> None:
    """Make a link, relative or absolute."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_relative = rng.random() < 0.6
    path.symlink_to(os.path.relpath(target, path.parent) if is_relative else target)


def _as_opened(path: Path) -> Layout:
    """Return a layout that has to be taken if ONNX Runtime opens it, and may be taken anyway."""
    return Layout(path, True if _opens(path) else None, ["link", "model.onnx_data"])


def _hub_cache(root: Path, model: onnx.ModelProto, rng: Random) -> Layout:
    """Model and data are links to files that are named by their hash."""
    blobs = root / "blobs"
    stored = _stored(blobs, model)
    inner = root / "snapshots" / "0123" / str(rng.choice(("", "onnx", "a/b")))
    for file in (stored, stored.with_name("model.onnx_data")):
        moved = file.rename(blobs / f"{rng.integers(1 << 60):x}")
        _link(inner / file.name, moved, rng)
    return _as_opened(inner / "model.onnx")


def _linked_data(root: Path, model: onnx.ModelProto, rng: Random) -> Layout:
    """The model is a file; its data is a link, or a chain of links, to a file elsewhere."""
    path = _stored(root / "here", model)
    data = path.with_name("model.onnx_data")
    target = root / "far" / "away.bin"
    target.parent.mkdir()
    data.rename(target)
    for i in range(int(rng.integers(0, 4))):
        link = root / "far" / f"link{i}"
        _link(link, target, rng)
        target = link
    _link(data, target, rng)
    return _as_opened(path)


def _linked_folder(root: Path, model: onnx.ModelProto, rng: Random) -> Layout:
    """The folder of the model, or one above it, is a link; model and data lie side by side."""
    _stored(root / "real" / "inner", model)
    _link(root / "shown", root / "real", rng)
    return _as_opened(root / "shown" / "inner" / "model.onnx")


def _data_below(root: Path, model: onnx.ModelProto, rng: Random) -> Layout:
    """The data lies in a folder beside the model, which is a link in some."""
    path = _stored(root, model)
    far = root / ("data" if rng.random() < 0.5 else "far")
    far.mkdir()
    path.with_name("model.onnx_data").rename(far / "w.bin")
    if far.name == "far":
        _link(root / "data", far, rng)
    build.edit_external(path, location="data/w.bin")
    return _as_opened(path)


def _linked_model(root: Path, model: onnx.ModelProto, rng: Random) -> Layout:
    """The model is a link to one in another folder, where its data lies, but not beside the link."""
    path = _stored(root / "real", model)
    _link(root / "shown" / "model.onnx", path, rng)
    return _as_opened(root / "shown" / "model.onnx")


def _dangling(root: Path, model: onnx.ModelProto, rng: Random) -> Layout:
    """The data is a link to nothing, as after a download that was not finished."""
    path = _stored(root, model)
    data = path.with_name("model.onnx_data")
    data.unlink()
    _link(data, root / "blobs" / "gone", rng)
    return Layout(path, False, ["model.onnx"])


def _loop(root: Path, model: onnx.ModelProto, rng: Random) -> Layout:
    """The data, or the model itself, is a link to a link to itself."""
    path = _stored(root, model)
    place = path if rng.random() < 0.4 else path.with_name("model.onnx_data")
    place.unlink()
    _link(place, root / "again", rng)
    _link(root / "again", place, rng)
    return Layout(path, False, [place.name])


def _leaving(root: Path, model: onnx.ModelProto, rng: Random) -> Layout:
    """The path in the model leads out of its folder, past folders or links that lie in it."""
    path = _stored(root / "in", model)
    outside = root.parent / "secret.data"
    size = path.with_name("model.onnx_data").stat().st_size
    outside.write_bytes((_SECRET * (size // len(_SECRET) + 1))[:size])
    (root / "in" / "sub").mkdir()
    _link(root / "in" / "up", root.parent, rng)
    locations = (
        *("../../secret.data", str(outside), "sub/../../../secret.data", "./../../secret.data"),
        *("sub/../sub/../../../secret.data", "up/../secret.data"),
    )
    build.edit_external(path, location=str(rng.choice(locations)))
    return Layout(path, False, ["secret.data", "outside", "model.onnx"])


def _not_a_file(root: Path, model: onnx.ModelProto, rng: Random) -> Layout:
    """The data is a folder, a link to one, a device or an empty file."""
    path = _stored(root, model)
    data = path.with_name("model.onnx_data")
    data.unlink()
    kind = int(rng.integers(4))
    if kind == 0:
        data.mkdir()
    elif kind == 1:
        data.write_bytes(b"")
    else:
        _link(data, Path("/dev/zero") if kind == 2 else root, rng)
    return Layout(path, False, ["model.onnx"])


LAYOUTS: tuple[Callable[[Path, onnx.ModelProto, Random], Layout], ...] = (
    *(_hub_cache, _linked_data, _linked_folder, _data_below, _linked_model, _dangling, _loop, _leaving),
    _not_a_file,
)

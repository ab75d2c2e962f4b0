"""Random folders of samples: names, types, shapes and endings that are usual or not, tokens, nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx

from tests.attack.decoders import NAMES_OF_GENAI, at_once, decoder, empty, random_form, story_of
from tests.attack.draft import Draft, Random
from tests.attack.graphs.tool_runs import Fallen, call, say
from tests.attack.rolled import Feeds, in_both, session_of
from tests.attack.tried import Tries, on_model

_NAMES = ("file", "allow_pickle", "self", "args", "kwds", "mmap_mode", "x", "x.npy", "input", "a/b", "größen",
          "0", "arr_0", "input_ids", "name with space", "mode", "fix_imports", "data", "a:b")  # fmt: skip
_TYPES = (np.float32, np.float32, np.float32, np.int64, np.int32, np.float16, np.bool_, np.float64, np.uint8)


@dataclass
class Folder:
    """Samples as they lie in a folder, by the stem of the file, and what the model has to be fed with.

    ``is_usual``: nothing about them may be refused.
    """

    model: onnx.ModelProto
    files: dict[str, Mapping[str, np.ndarray]]
    feeds: dict[str, Feeds] = field(default_factory=dict)
    is_usual: bool = True
    single: bool = False


def attack(seed: int, folder: Path) -> str | None:
    """Run tools on the folder of a seed; return None, or what fell in one line."""
    rng = np.random.default_rng([seed, 15])
    case = _tokens(rng) if rng.random() < 0.3 else _arrays(rng)
    tries = on_model(case.model, folder)
    data = folder / "data"
    data.mkdir()
    for stem, arrays in case.files.items():
        _write(data, stem, arrays, rng, single=case.single)
    case = case if rng.random() < 0.6 else _spoiled(case, data, rng)
    with tries.temporary_files():
        tries.attempt("infer", _inferred, case, tries)
        tries.attempt("quantize", _quantized, case, tries, rng)
    return tries.failure


def _arrays(rng: Random) -> Folder:
    """Return a model of one to three inputs of any type, and samples of different numbers of rows."""
    draft, width = Draft(rng), int(rng.choice((4, 8)))
    names = [str(name) for name in rng.choice(_NAMES, int(rng.integers(1, 4)), replace=False)]
    types = {name: _TYPES[int(rng.integers(len(_TYPES)))] for name in names}
    parts = []
    for name in names:
        wide = name if types[name] is np.float32 else draft.op("Cast", [name], to=onnx.TensorProto.FLOAT)
        parts.append(draft.op("MatMul", [wide, draft.weight(width, 5)]))
    draft.op("Sum", parts, "y")
    inputs = {name: (["n", width], types[name]) for name in names}
    model = draft.model(inputs, {"y": (["n", 5], np.float32)})
    feeds = {}
    for i in range(int(rng.choice((1, 2, 5)))):
        rows = int(rng.integers(1, 5))
        feeds[f"s{i}"] = {
            name: (rng.standard_normal((rows, width)) * 3).astype(types[name]) for name in names
        }
    return Folder(model, dict(feeds), feeds, single=len(names) == 1)


def _tokens(rng: Random) -> Folder:
    """Return a decoder, and texts of different lengths as files of tokens alone."""
    form = replace(
        random_form(rng), is_fused=True, has_tokens=True, has_cross=False, dtype=np.float32, layers=1
    )
    plain = dict.fromkeys("kv", "bhtc")
    built = decoder(rng, replace(form, layouts=plain, names=NAMES_OF_GENAI, key_scale=1.0, head_scale=1.0))
    files: dict[str, Mapping[str, np.ndarray]] = {}
    feeds = {}
    for i in range(int(rng.integers(1, 5))):
        length, rows = (
            int(rng.integers(1, 20)),
            int(rng.integers(0, 3)),
        )  # 0: a text without a dimension for rows
        texts = [at_once(built, story_of(built, rng, (length,))) for _ in range(max(rows, 1))]
        tokens = np.concatenate([text["input_ids"] for text in texts])
        files[f"s{i}"] = {"": (tokens if rows else tokens[0]).astype(rng.choice((np.int32, np.int64)))}
        feeds |= {
            f"s{i}-{row}" if rows else f"s{i}": text | empty(built, 1) for row, text in enumerate(texts, 1)
        }
    return Folder(built.model, files, feeds, single=True)


def _write(folder: Path, stem: str, arrays: Mapping[str, np.ndarray], rng: Random, *, single: bool) -> None:
    """Write a sample in any of its usual forms."""
    if single and ("" in arrays or rng.random() < 0.5):
        array = next(iter(arrays.values()))
        with (folder / f"{stem}.npy").open("wb") as file:
            fortran = np.asfortranarray(array) if rng.random() < 0.2 else array
            np.lib.format.write_array(file, fortran)
        return
    Tries.write(folder / f"{stem}.npz", dict(arrays))


def _spoiled(case: Folder, data: Path, rng: Random) -> Folder:
    """Change something about a folder that may be refused, but only in words, or add what does not count."""
    spoil = SPOILS[int(rng.integers(len(SPOILS)))]
    return spoil(case, data, rng)


def _retyped(case: Folder, data: Path, rng: Random) -> Folder:
    """One file has the numbers in another type."""
    stem = str(rng.choice(list(case.files)))
    kind = np.dtype(
        str(rng.choice(("<i4", "<i8", "<f8", ">f4", "<f2", "|b1", "|u1", "<c8", "<U3", "<M8[s]")))
    )
    with np.errstate(all="ignore"):
        try:
            changed = {name: array.astype(kind) for name, array in case.files[stem].items()}
        except (TypeError, ValueError):
            return case
    _remove(data, stem)
    _write(data, stem, changed, rng, single=case.single)
    types = {name: array.dtype for name, array in case.files[stem].items()}
    back = {name: array.astype(types[name]) for name, array in changed.items()} if kind.kind in "iufb" else {}
    feeds = {stem: back} if back and "" not in back else {}
    return replace(case, is_usual=False, feeds=feeds)


def _remove(data: Path, stem: str) -> None:
    for path in data.glob(f"{stem}.np*"):
        path.unlink()


def _reshaped(case: Folder, data: Path, rng: Random) -> Folder:
    """One file has another shape: no rows, one dimension less or more, another width."""
    stem = str(rng.choice(list(case.files)))
    ways: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
        *(lambda a: a[:0], lambda a: a[None], lambda a: a.reshape(-1), lambda a: a[..., :-1]),
        *(lambda a: a.reshape(-1)[0].reshape(()), lambda a: a.T, lambda a: a[..., :0]),
    )
    way = ways[int(rng.integers(len(ways)))]
    _remove(data, stem)
    _write(
        data, stem, {name: way(array) for name, array in case.files[stem].items()}, rng, single=case.single
    )
    return replace(case, is_usual=False, feeds={})


def _emptied(case: Folder, data: Path, rng: Random) -> Folder:
    for path in data.iterdir():
        path.unlink()
    if rng.random() < 0.5:
        (data / "notes.txt").write_text("nothing")
    return replace(case, is_usual=False, feeds={})


def _nested(case: Folder, data: Path, rng: Random) -> Folder:
    """All files lie one folder deeper, or some do."""
    inner = data / str(rng.choice(("train", "in", "s0", ".hidden", "a.npz")))
    inner.mkdir()
    for path in list(data.iterdir())[: None if rng.random() < 0.5 else 1]:
        if path.is_file():
            path.rename(inner / path.name)
    return replace(case, is_usual=False, feeds={})


def _littered(case: Folder, data: Path, rng: Random) -> Folder:
    """Beside the samples lies what systems leave there, which does not count."""
    for name in (".DS_Store", "._s0.npz", "Thumbs.db", "README.md"):
        if rng.random() < 0.6:
            (data / name).write_bytes(b"litter")
    return case


def _renamed(case: Folder, data: Path, rng: Random) -> Folder:
    """Arrays have other names than inputs, one is missing, or there is one more."""
    stem = str(rng.choice(list(case.files)))
    arrays = {name or "input_ids": array for name, array in case.files[stem].items()}
    way = int(rng.integers(3))
    if way == 0:
        arrays = {f"{name}_": array for name, array in arrays.items()}
    elif way == 1:
        arrays.pop(next(iter(arrays)))
    else:
        arrays["more"] = np.ones(3, np.float32)
    _remove(data, stem)
    Tries.write(data / f"{stem}.npz", arrays)
    return replace(case, is_usual=False, feeds={})


SPOILS = (_retyped, _reshaped, _emptied, _nested, _littered, _renamed)


def _inferred(case: Folder, tries: Tries) -> None:
    output = tries.folder / "results"
    options = ["--data", str(tries.folder / "data"), "--threads", "1"]
    code, said = say("infer", "--input", str(tries.source), "--output", str(output), *options)
    if code:
        _refused(case, said, tries)
        return
    run = session_of(case.model, optimized=True)
    names = [one.name for one in case.model.graph.output]
    for stem, feed in case.feeds.items():
        for name, right in run(feed).items():
            found = np.load((output / name if len(names) > 1 else output) / f"{stem}.npy")
            if found.shape != right.shape or not np.allclose(found, right, rtol=1e-4, atol=1e-4):
                raise Fallen(f"'{name}' of {stem} is not what ONNX Runtime makes of the sample")


def _quantized(case: Folder, tries: Tries, rng: Random) -> None:
    config = str(rng.choice(("A8W8", "W4", "A8W8")))
    options = ["--config", config, "--data", str(tries.folder / "data"), "--no-time", "--threads", "1"]
    options += ["--fast"] if config == "A8W8" and rng.random() < 0.7 else []
    done = call("quantize", tries.source, tries.folder / "out.onnx", *options)
    if done.refusal:
        _refused(case, done.refusal, tries)
    for feed in case.feeds.values() if done.model else ():
        outputs = [run(feed) for run in in_both(done.model)]
        if not all(np.isfinite(one).all() for found in outputs for one in found.values()):
            raise Fallen("a result is not finite")


def _refused(case: Folder, reason: str, tries: Tries) -> None:
    tries.notes.append(f"refused: {' '.join(reason.split())[-80:]}")
    if case.is_usual and "nats" not in reason:
        raise Fallen(f"a usual folder is refused: {reason}")
    if not any(name in reason for name in ("sample", "data'", "folder", "input '", *case.files)):
        raise Fallen(f"a refusal that names no sample: {reason}")

"""A model names its external data; old data go, files of others stay, dead writers leave nothing.

Oracle: the weights that were saved, as ``onnx.load`` reads them with their external data, and the folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.helpers import build
from transforms import model_io
from transforms.files.cleanup import locked, temporary

ROOT = Path(__file__).resolve().parents[2]
WIDE = 256
CALLS = ("fsync", "replace", "unlink")


def graph_of(seed: int):
    return model_io.load(build.dense(WIDE, seed=seed))


def save(path: Path, seed: int, *, external: bool = True, force: bool = True) -> list[Path]:
    return model_io.save(graph_of(seed), path, external_data=external, force=force)


def holds(path: Path, seed: int) -> bool:
    """Whether a model loads with the weights of a seed, bit for bit."""
    (expected,) = build.dense(WIDE, seed=seed).graph.initializer
    (found,) = onnx.load(path).graph.initializer
    return np.array_equal(numpy_helper.to_array(found), numpy_helper.to_array(expected))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_equal_content_has_an_equal_name(tmp_path: Path) -> None:
    first = [path.name for path in save(tmp_path / "m.onnx", 1)]
    bytes_of_first = (tmp_path / "m.onnx").read_bytes()
    assert [path.name for path in save(tmp_path / "m.onnx", 1)] == first
    assert ((tmp_path / "m.onnx").read_bytes(), names(tmp_path)) == (bytes_of_first, set(first))
    assert save(tmp_path / "m.onnx", 2)[1].name != first[1]


@pytest.mark.parametrize("external", (True, False))
def test_the_data_of_a_replaced_model_go_with_it(tmp_path: Path, external: bool) -> None:
    save(tmp_path / "m.onnx", 1)
    written = save(tmp_path / "m.onnx", 2, external=external)
    assert names(tmp_path) == {path.name for path in written}
    assert holds(tmp_path / "m.onnx", 2)


def test_data_that_another_model_names_stay(tmp_path: Path) -> None:
    save(tmp_path / "m.onnx", 1)
    shutil.copy(tmp_path / "m.onnx", tmp_path / "copy.onnx")
    save(tmp_path / "m.onnx", 2)
    assert holds(tmp_path / "copy.onnx", 1) and holds(tmp_path / "m.onnx", 2)


def test_data_of_a_model_that_was_renamed_go_with_it(tmp_path: Path) -> None:
    save(tmp_path / "m.onnx", 1)
    (tmp_path / "m.onnx").rename(tmp_path / "best.onnx")
    written = save(tmp_path / "best.onnx", 2)
    assert names(tmp_path) == {path.name for path in written}


def test_files_that_are_not_named_as_ours_stay(tmp_path: Path) -> None:
    build.save_external(build.dense(WIDE, seed=1), tmp_path / "m.onnx", "m.onnx.data")
    (tmp_path / "m.onnx.0123456789abcdef.data").write_bytes(b"named so, but the model does not use it")
    written = save(tmp_path / "m.onnx", 2)
    stay = {"m.onnx.data", "m.onnx.0123456789abcdef.data"}
    assert names(tmp_path) == {path.name for path in written} | stay


def test_data_of_the_source_stay_in_another_folder_too(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    target = tmp_path / "sub" / "m.onnx"
    _, data = save(target, 1)
    model = onnx.load(target, load_external_data=False)
    model.graph.initializer[0].external_data[0].value = f"sub/{data.name}"
    source = build.save(model, tmp_path / "source.onnx")
    graph = model_io.load(source)
    graph.nodes[0].inputs[1].values = graph.nodes[0].inputs[1].values * 2
    model_io.save(graph, target, external_data=True)
    assert holds(source, 1)


def test_another_writer_that_came_first_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = iter([None])

    def meanwhile(*arguments: object) -> None:
        if next(once, 1) is None:
            save(tmp_path / "m.onnx", 1)

    monkeypatch.setattr(model_io, "refuse_source", meanwhile)
    with pytest.raises(FileExistsError, match="force overwrites"):
        save(tmp_path / "m.onnx", 2, force=False)
    assert holds(tmp_path / "m.onnx", 1)


def test_small_weights_need_no_data_file(tmp_path: Path) -> None:
    assert model_io.save(model_io.load(build.dense(4)), tmp_path / "m.onnx", external_data=True) == [
        tmp_path / "m.onnx"
    ]


# Writers that are killed


KILLED = """
import os, pathlib, signal, sys
from tests.helpers import build
from transforms import model_io
graph = model_io.load(build.dense(256, seed=int(sys.argv[2])))
left = int(sys.argv[3])
def hook(original):
    def call(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)
    return call
for name in ("fsync", "replace", "unlink"):
    setattr(os, name, hook(getattr(os, name)))
model_io.save(graph, sys.argv[1], external_data=sys.argv[4] == "external")
"""


def killed(path: Path, seed: int, calls: int, style: str) -> bool:
    """Save in a process that is killed before one of its calls; return whether it was."""
    command = [sys.executable, "-c", KILLED, str(path), str(seed), str(calls), style]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=120)
    assert done.returncode in (0, -signal.SIGKILL)
    return done.returncode != 0


@pytest.mark.heavy
@pytest.mark.parametrize("style", (pytest.param("external", marks=pytest.mark.heavy), "one file"))
def test_a_kill_leaves_the_old_or_the_new_model_and_the_next_run_cleans_up(
    tmp_path: Path, style: str
) -> None:
    """Killed before every call that makes a file durable or visible, or takes it away."""
    for calls in range(20):
        folder = tmp_path / str(calls)
        folder.mkdir()
        path = folder / "m.onnx"
        save(path, 1)
        was_killed = killed(path, 2, calls, style)
        assert holds(path, 1) or holds(path, 2)
        written = save(path, 3)
        assert holds(path, 3) and names(folder) == {file.name for file in written}
        if not was_killed:
            break
    assert 3 <= calls < 19


def test_a_live_writer_keeps_its_files(tmp_path: Path) -> None:
    with temporary(tmp_path / "m.onnx") as own:
        script = "import sys, time; from pathlib import Path\n"
        script += "from transforms.files.cleanup import temporary\n"
        script += "with temporary(Path(sys.argv[1])) as f: print(f, flush=True); time.sleep(600)"
        command = [sys.executable, "-c", script, str(tmp_path / "m.onnx")]
        with subprocess.Popen(
            command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout is not None
            theirs = Path(other.stdout.readline().strip())
            save(tmp_path / "m.onnx", 1)
            assert own.exists() and theirs.exists()
            other.kill()
        save(tmp_path / "m.onnx", 1)
        assert own.exists() and not theirs.exists()


@pytest.mark.parametrize(
    "change",
    (lambda name: name.replace(".tmp", ".old"), lambda name: name[1:]),
    ids=("of another kind", "not hidden"),
)
def test_files_that_may_be_of_others_stay(tmp_path: Path, change: Callable[[str], str]) -> None:
    (tmp_path / "dead").mkdir()
    assert killed(tmp_path / "dead" / "m.onnx", 1, 0, "one file")
    (left,) = names(tmp_path / "dead")
    (tmp_path / change(left)).touch()
    save(tmp_path / "m.onnx", 1)
    assert change(left) in names(tmp_path)


def test_a_lock_is_one_thread_s(tmp_path: Path) -> None:
    def _try() -> bool:
        with locked(tmp_path, patience=0) as acquired:
            return acquired

    with ThreadPoolExecutor(1) as other, locked(tmp_path) as alone, locked(tmp_path) as again:
        assert alone and again and not other.submit(_try).result()
        with locked(tmp_path):
            pass
        assert not other.submit(_try).result()
    assert _try()


def test_without_a_lock_the_old_data_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, data = save(tmp_path / "m.onnx", 1)
    monkeypatch.setattr("transforms.files.cleanup._lock", lambda descriptor: None)
    save(tmp_path / "m.onnx", 2)
    assert data.exists() and holds(tmp_path / "m.onnx", 2)

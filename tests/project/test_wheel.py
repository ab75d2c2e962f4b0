"""A wheel of a source distribution works without the checkout: installed elsewhere, run among decoys.

The environment is fresh: it holds our wheel and, by a path that comes after it, the libraries of this one,
without the links that lead an editable installation back to the checkout.
"""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wheel import library_of, linux_tag
from tools import __main__ as listing

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ops", "transforms", "tools")
COMMAND = re.compile(rf"(?<![\w./])tools\.(?:{'|'.join(listing.names())})\b")
"""A tool as it is called in the checkout; `onnx_narrow.tools.NAME` is a module of the wheel."""
NEVER_COPIED = ("*.so", "*.c", "__pycache__", ".*", "*.egg-info", "build", "dist")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that ``pip wheel`` builds of the source distribution of a copy without anything built."""
    copied = tmp_path_factory.mktemp("source") / "project"
    shutil.copytree(ROOT, copied, ignore=shutil.ignore_patterns(*NEVER_COPIED))
    packed = [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(copied.parent)]
    subprocess.run(packed, cwd=copied, capture_output=True, check=True)
    (source,) = copied.parent.glob("onnx_narrow-*.tar.gz")
    target = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--wheel-dir", str(target), *_without_isolation()]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, str(source)],
        env=os.environ | {"NARROW_BUILD": "debug"},  # compiles in a third of the time
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = target.iterdir()
    return built


def _without_isolation() -> list[str]:
    """Return the option that saves a download where the build requirements are installed already."""
    try:
        versions = [int(importlib.metadata.version(name).split(".")[0]) for name in ("setuptools", "cython")]
    except importlib.metadata.PackageNotFoundError:
        return []
    return ["--no-build-isolation"] if versions[0] >= 77 and versions[1] >= 3 else []


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the wheel."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(folder, symlinks=True)
    interpreter = folder / "bin" / "python"
    install = ["--python", str(interpreter), "install", "--no-deps", "--no-index", str(wheel)]
    done = subprocess.run([sys.executable, "-m", "pip", *install], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_paths()["platlib"] + "\n", encoding="utf-8")
    return interpreter


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder with decoys of our packages and the example model."""
    for name in (*PACKAGES, "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('a decoy')\n", encoding="utf-8")
    shutil.copy(ROOT / "tests" / "examples" / "digits.onnx", tmp_path)
    return tmp_path


def run(python: Path, folder: Path, *arguments: str) -> str:
    """Run the interpreter isolated (no current folder, no PYTHONPATH) and return what it printed."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [python, "-I", *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wheel_holds_our_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    folders = {name.split("/")[0] for name in names}
    assert {name for name in folders if not name.endswith(".dist-info")} == {"onnx_narrow"}
    place = "onnx_narrow/ops/_library."
    natives = [name for name in names if name.startswith(place) and not name.endswith(".pyi")]
    assert natives == [f"{place}abi3.so"]
    assert any(name.endswith("LICENSE") for name in names)
    assert {"onnx_narrow/py.typed", f"{place}pyi"} <= set(names)


def test_wheel_is_for_every_python_from_311_on(wheel: Path) -> None:
    assert wheel.stem.split("-")[2:4] == ["cp311", "abi3"]


@pytest.mark.skipif(sys.platform != "linux", reason="tags of Linux")
def test_library_needs_no_newer_glibc_than_its_tag_says(wheel: Path) -> None:
    """Oracle: PEP 600; 2.17 is what its oldest tag in use, manylinux2014, stands for."""
    assert linux_tag(library_of(wheel), "x86_64") == "manylinux_2_17_x86_64"


def test_tag_is_that_of_the_newest_symbol() -> None:
    names = b"\0libc.so.6\0GLIBC_2.2.5\0GLIBC_2.38\0GLIBC_2.4\0"
    assert linux_tag(names, "aarch64") == "manylinux_2_38_aarch64"
    with pytest.raises(ValueError, match=r"needs libgomp\.so\.1"):
        linux_tag(names + b"libgomp.so.1\0", "x86_64")


def test_wheel_holds_every_module_of_the_checkout(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    inside = {path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    own = {str(path.relative_to(ROOT)) for path in (ROOT / "onnx_narrow").rglob("*.py")}
    assert own | {f"onnx_narrow/{path}" for path in inside} <= names


def test_nothing_in_a_wheel_names_a_package_as_in_the_checkout(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".py"):
                source = archive.read(name).decode()
                roots = {module.partition(".")[0] for module in _imported(source)}
                assert not roots & set(PACKAGES) and "python -m tools" not in source, name
                assert not COMMAND.search(source), name


def _imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)


def test_imports_come_from_the_installed_wheel(python: Path, elsewhere: Path) -> None:
    code = (
        "from onnx_narrow import ops, transforms, tools; "
        "print(ops.__file__, transforms.__file__, tools.__file__, sep='\\n')"
    )
    files = [Path(name) for name in run(python, elsewhere, "-c", code).splitlines()]
    assert [file.parent.name for file in files] == list(PACKAGES)
    assert all(file.is_relative_to(python.parents[1]) for file in files)


def test_other_packages_of_these_names_stay_what_they_are(python: Path, elsewhere: Path) -> None:
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    (packages / "ops").mkdir()
    (packages / "ops" / "__init__.py").write_text("name = 'of another package'\n", encoding="utf-8")
    code = """
import numpy, onnx_narrow

class Reader:
    left = 8

    def get_next(self):
        self.left -= 1
        return {"images": numpy.full((2, 1, 8, 8), self.left / 8, "float32")} if self.left >= 0 else None

result = onnx_narrow.quantize("digits.onnx", config="A8W8", data=Reader())
import ops
print(ops.name, result.scheme.activation, onnx_narrow.ops is ops)
"""
    try:
        assert run(python, elsewhere, "-c", code).strip() == "of another package int8 False"
    finally:
        shutil.rmtree(packages / "ops")


def test_the_command_works_where_folders_have_the_names_of_our_packages(
    python: Path, elsewhere: Path
) -> None:
    command = [python.with_name("onnx-narrow"), "quantize", "--input", "digits.onnx", "--output", "q.onnx"]
    done = subprocess.run(
        [*command, "--config", "A8W8", "--random-data", "2", "--jobs", "2"],
        cwd=elsewhere,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and (elsewhere / "q.onnx").exists(), done.stderr
    helped = subprocess.run([command[0], "quantize", "--help"], cwd=elsewhere, capture_output=True, text=True)
    assert "onnx-narrow quantize --input" in helped.stdout and "tools." not in helped.stdout.split("usual")[0]


@pytest.mark.heavy
def test_type_checkers_see_the_interface(python: Path, elsewhere: Path) -> None:
    pytest.importorskip("mypy")
    script = (
        "import onnx_narrow\n"
        "from onnx_narrow import ops\n"
        "from onnx_narrow.transforms import insert_cast\n"
        "reveal_type(onnx_narrow.quantize('m.onnx').scheme)\n"
        "reveal_type(ops.DOMAIN)\n"
        "insert_cast(1, 2)\n"
    )
    (elsewhere / "script.py").write_text(script, encoding="utf-8")
    for decoy in (*PACKAGES, "tests"):
        shutil.rmtree(elsewhere / decoy)
    command = [sys.executable, "-m", "mypy", "--python-executable", str(python), "script.py"]
    done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True)
    assert 'type is "onnx_narrow.transforms.scheme.scheme.Scheme | None"' in done.stdout
    assert 'type is "str"' in done.stdout and done.stdout.count("error:") == 1, done.stdout


def test_rewrites_are_called_by_their_modules(python: Path, elsewhere: Path) -> None:
    code = """
from onnx_narrow.transforms import fuse_matmul, insert_cast, model_io
from onnx_narrow.transforms.insert_cast import insert_cast as function
graph = model_io.load("digits.onnx")
print(insert_cast(graph), function(graph), fuse_matmul(graph), insert_cast.insert_cast is function)
try:
    insert_cast("digits.onnx")
except TypeError as error:
    print(error)
"""
    counts, error = run(python, elsewhere, "-c", code).splitlines()
    assert counts == "16 0 0 True"
    assert error.endswith("load it with onnx_narrow.transforms.model_io.load")


def test_tests_are_not_shipped(python: Path, elsewhere: Path) -> None:
    code = "import importlib.util; print(importlib.util.find_spec('tests'))"
    assert run(python, elsewhere, "-c", code).strip() == "None"


@pytest.mark.parametrize("kind", ["with_cast", "customqdq"])
def test_installed_tool_converts_and_the_result_runs(python: Path, elsewhere: Path, kind: str) -> None:
    options = ["--input", "digits.onnx", "--output", "narrow.onnx", "--format", kind]
    run(python, elsewhere, "-m", "onnx_narrow", "convert_fp32_to_bf16", *options)
    code = """
import numpy, onnxruntime
from onnx_narrow import ops
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(ops.get_library_path())
images = numpy.zeros((2, 1, 8, 8), numpy.float32)
print(onnxruntime.InferenceSession("narrow.onnx", options).run(None, {"images": images})[0].shape)
"""
    assert run(python, elsewhere, "-c", code).strip() == "(2, 10)"

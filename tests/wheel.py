"""Build the wheel and the source distribution, and try the wheel: ``python -m tests.wheel``.

The source distribution is built first, and the wheel from it; both come to dist, with ``--aarch64`` also a
wheel that a cross compiler makes. A Linux wheel gets the tag of the oldest glibc that it runs on. Then it is
installed in a fresh environment of each Python from 3.11 on that PATH has, without a compiler on PATH; it
converts the example model and runs it by the operators of both domains.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST_GLIBC = (2, 17)  # the oldest that tags of aarch64 know; older ones of x86-64 gain nobody
SYSTEM_LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux-aarch64.so.1"}
PYTHONS = tuple(f"python3.{minor}" for minor in range(11, 30))
TRIAL = """
import numpy, onnx, onnxruntime
from onnx_narrow import ops
from onnx_narrow.transforms import insert_cast, model_io
graph = model_io.load("narrow.onnx")
assert insert_cast(graph, "bfloat16") >= insert_cast(graph, "bfloat16") == 0
model = onnx.load("narrow.onnx")
ours = [part for part in (*model.graph.node, *model.opset_import) if part.domain == ops.DOMAIN]
assert len(ours) > 1
for domain in (ops.DOMAIN, ops.AMD_DOMAIN):
    for part in ours:
        part.domain = domain
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(ops.get_library_path(domain=domain))
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    images = numpy.zeros((2, 1, 8, 8), numpy.float32)
    assert session.run(None, {"images": images})[0].shape == (2, 10)
"""


def glibc_needed(library: bytes) -> tuple[int, int]:
    """Return the newest version of glibc whose symbols an ELF library asks for, by their names in it."""
    versions = re.findall(rb"\0GLIBC_(\d+)\.(\d+)(?:\.\d+)?(?=\0)", library)
    return max([OLDEST_GLIBC, *((int(major), int(minor)) for major, minor in versions)])


def foreign_libraries(library: bytes) -> set[str]:
    """Return the shared libraries that an ELF library names, beyond those of glibc."""
    names = {name.decode() for name in re.findall(rb"\0((?:lib|ld-)[\w.+-]*\.so(?:\.\d+)*)(?=\0)", library)}
    return names - SYSTEM_LIBRARIES


def linux_tag(library: bytes, machine: str) -> str:
    """Return the platform tag (PEP 600) of a wheel with this library; raise ValueError if it has none."""
    if foreign := foreign_libraries(library):
        raise ValueError(f"the library needs {', '.join(sorted(foreign))}, legal is glibc alone")
    return "manylinux_{}_{}_{}".format(*glibc_needed(library), machine)


def build(folder: Path, tools: Path, *, aarch64: bool = False) -> tuple[Path, ...]:
    """Build the wheel and the source distribution in a folder, in an environment that is made for that.

    ``aarch64``: and a wheel for that machine, last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run(sys.executable, "-m", "venv", tools)
    python = tools / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "build", "wheel")
    with tempfile.TemporaryDirectory() as fresh:
        run(python, "-m", "build", "--outdir", fresh, ROOT)
        (source,) = Path(fresh).glob("*.tar.gz")
        if aarch64:
            from tests.helpers.aarch64 import cross_wheel

            shutil.move(cross_wheel(Path(fresh) / "cross"), fresh)
        for wheel in [*Path(fresh).glob("*-linux_*.whl")]:
            machine = wheel.stem.split("-linux_")[1]
            tag = linux_tag(library_of(wheel), machine)
            run(python, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, wheel)
        for old in (*folder.glob("onnx_narrow-*.whl"), *folder.glob("onnx_narrow-*.tar.gz")):
            old.unlink()
        wheels = sorted(Path(fresh).glob("*.whl"), key=lambda wheel: "aarch64" in wheel.name)
        first, *others = (Path(shutil.copy(wheel, folder)) for wheel in wheels)
        return first, Path(shutil.copy(source, folder)), *others


def library_of(wheel: Path) -> bytes:
    """Return the native library in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        library = re.compile(r"onnx_narrow/ops/_library\.[\w.-]*(so|pyd)")
        (name,) = filter(library.fullmatch, archive.namelist())
        return archive.read(name)


def find_pythons() -> list[str]:
    """Return the interpreters on PATH that are there and start, the one that runs this first."""
    found = [sys.executable]
    for name in PYTHONS:
        path = shutil.which(name)
        works = path and not subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode
        if path and works and name != "python{}.{}".format(*sys.version_info[:2]):
            found.append(path)
    return found


def try_wheel(wheel: Path, interpreter: str, folder: Path) -> None:
    """Install a wheel without a compiler in reach, convert the example model and run it."""
    run(interpreter, "-m", "venv", folder)
    commands = folder / "bin"
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CC")}
    environment["PATH"] = str(commands)
    python = commands / "python"
    run(python, "-m", "pip", "install", "--quiet", wheel, environment=environment)
    example = ROOT / "tests" / "examples" / "digits.onnx"
    options = ["--input", example, "--output", folder / "narrow.onnx", "--format", "customqdq"]
    tool = [commands / "onnx-narrow", "convert_fp32_to_bf16", *options]
    run(*tool, environment=environment, directory=folder)
    run(python, "-I", "-c", TRIAL, environment=environment, directory=folder)


def run(
    *command: str | Path, environment: dict[str, str] | None = None, directory: Path | None = None
) -> None:
    """Run a command; it says itself what fails."""
    subprocess.run([str(part) for part in command], env=environment, cwd=directory, check=True)


def main() -> None:
    """Build and try."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0].split(":")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    parser.add_argument("--aarch64", action="store_true", help="build a wheel for aarch64, too")
    parser.add_argument("--build-only", action="store_true", help="do not try the wheel")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        wheel, *others = build(options.folder, Path(place) / "tools", aarch64=options.aarch64)
        print(wheel, *others, sep="\n", flush=True)
        for i, interpreter in enumerate([] if options.build_only else find_pythons()):
            try_wheel(wheel, interpreter, Path(place) / f"trial{i}")
            print("installed without a compiler, converts and runs:", interpreter, flush=True)


if __name__ == "__main__":
    main()

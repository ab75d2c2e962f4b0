"""A wheel for aarch64, made by a cross compiler, and a Python of aarch64 that has it; QEMU runs that.

Python is that of Debian's packages, in a folder of its own; what ``ops`` imports are wheels. Nothing of the
system is changed, and no rights are needed. ONNX Runtime's wheel ends in a segmentation fault in QEMU 7.2, so
it is left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.emulated import ROOT, emulate, emulator

_COMPILER = "aarch64-linux-gnu-"
_PYTHON = "3.11"
_PACKAGES = [f"{name}{_PYTHON}-{part}" for name, part in (("python", "minimal"), ("libpython", "minimal"))]
_PACKAGES += [f"libpython{_PYTHON}-stdlib", "libc6", "libgcc-s1", "libstdc++6", "zlib1g", "libexpat1"]
_PACKAGES += ["libssl3", "libffi8", "libbz2-1.0", "liblzma5", "libuuid1", "libcrypt1"]
_WHEELS = "numpy", "ml_dtypes", "onnxruntime-extensions"
_PLATFORMS = "manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux2014_aarch64"


@dataclass(frozen=True)
class Aarch64:
    """The folder of that Python, and how it is called."""

    folder: Path
    emulator: str

    def run(self, *arguments: object) -> str:
        """Run it with arguments and return what it prints; AssertionError if that fails."""
        root = self.folder / "root"
        command = [self.emulator, "-L", str(root), str(root / f"usr/bin/python{_PYTHON}")]
        return emulate(command, arguments, {"PYTHONPATH": str(self.folder / "site")})


def make_python(folder: Path) -> Aarch64:
    """Return a Python of aarch64 that can import ``onnx_narrow.ops``, made in an empty folder.

    Skips the test without the emulator, the cross compiler, or the package indexes.
    """
    program = emulator("qemu-aarch64")
    if shutil.which(f"{_COMPILER}gcc") is None:
        pytest.skip("the cross compiler is not installed (Debian: apt-get install gcc-aarch64-linux-gnu)")
    _unpack_debian(folder / "root", folder / "apt")
    _unpack_wheels(folder / "site", folder / "wheels")
    with zipfile.ZipFile(cross_wheel(folder / "built")) as wheel:
        wheel.extractall(folder / "site")
    return Aarch64(folder, program)


def cross_wheel(folder: Path) -> Path:
    """Return our wheel for aarch64, made in an empty folder by setup.py as on aarch64 itself.

    Raises CalledProcessError, and OSError without the cross compiler.
    """
    tools = folder / "tools"
    tools.mkdir(parents=True)
    (tools / "objcopy").symlink_to(str(shutil.which(f"{_COMPILER}objcopy")))
    own = {"CC": f"{_COMPILER}gcc", "LDSHARED": f"{_COMPILER}gcc -shared"}
    path = os.pathsep.join([str(tools), os.environ["PATH"]])
    build = ["egg_info", "--egg-base", folder, "build", "--build-base", folder / "build"]
    wheel = ["bdist_wheel", "--plat-name", "linux_aarch64", "--bdist-dir", folder / "tree"]
    subprocess.run(
        [sys.executable, "setup.py", "-q", *build, *wheel, "--dist-dir", folder],
        cwd=ROOT, env={**os.environ, **own, "PATH": path}, stdout=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    (made,) = folder.glob("*.whl")
    return made


def _unpack_debian(root: Path, work: Path) -> None:
    """Download packages with an index, a cache and a list of installed packages of their own."""
    (work / "lists/partial").mkdir(parents=True)
    (work / "cache/archives/partial").mkdir(parents=True)
    (work / "status").touch()
    own = {"Dir::State::lists": "lists", "Dir::Cache": "cache", "Dir::State::status": "status"}
    settings = [f"{name}={work / path}" for name, path in own.items()]
    settings += ["APT::Architecture=arm64", "APT::Architectures=arm64", "APT::Sandbox::User="]
    options = [word for setting in settings for word in ("-o", setting)]
    for command in (["update"], ["download", *_PACKAGES]):
        _need(["apt-get", "-q", *options, *command], work, "Debian's arm64 packages")
    for package in work.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, root], check=True)


def _unpack_wheels(site: Path, work: Path) -> None:
    work.mkdir()
    platforms = [word for name in _PLATFORMS for word in ("--platform", name)]
    options = ["--only-binary=:all:", "--no-deps", "--python-version", _PYTHON, *platforms]
    _need([sys.executable, "-m", "pip", "download", *options, *_WHEELS], work, "wheels for aarch64")
    for wheel in work.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)


def _need(command: list[str], folder: Path, what: str) -> None:
    """Run a command in a folder; skips the test if it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{what} cannot be downloaded: {(done.stderr or done.stdout).strip().splitlines()[-1]}")

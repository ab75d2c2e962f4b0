"""A build in the tree keeps a library that would come out the same, and no other.

The compiler is a script that writes down its calls, and the source is a module of one line: what is tried
is when setup.py compiles, not what comes out. Oracle: the number of calls.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo version 1; exit; fi
echo call >> "{calls}"
while [ $# -gt 0 ]; do
    if [ "$1" = -o ]; then echo built > "$2"; fi
    shift
done
"""

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="the compiler is a shell script"),
    pytest.mark.skipif(
        subprocess.run(
            [sys.executable, "-c", "import Cython, setuptools as s; assert int(s.__version__[:2]) >= 77"],
            capture_output=True,
            check=False,
        ).returncode
        != 0,
        reason="the build requirements are not installed here",
    ),
]


class Tree:
    """A copy of what a build needs, and the process that builds in it."""

    def __init__(self, folder: Path, compiler: Path, builder: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.compiler = compiler
        self.builder = builder
        self.calls = compiler.with_name("calls")
        self.tools = compiler.with_name("tools")
        self.variables = {"CC": str(compiler), "PATH": f"{self.tools}{os.pathsep}{os.environ['PATH']}"}

    @property
    def library(self) -> Path:
        (found,) = (self.folder / "ops").glob("_library.*so")
        return found

    def build(self) -> bool:
        """Build in the tree; return whether that compiled."""
        self.calls.unlink(missing_ok=True)
        output = self.folder.with_name("output")
        output.unlink(missing_ok=True)
        environment = {name: value for name, value in os.environ.items() if name != "NARROW_BUILD"}
        asked = str(self.folder), str(output), environment | self.variables
        assert self.builder.stdin and self.builder.stdout, "pipes"
        print(json.dumps(asked), file=self.builder.stdin, flush=True)
        assert self.builder.stdout.readline() == "0\n", output.read_text(encoding="utf-8")
        return self.calls.exists()

    def append(self, name: str, text: str) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(text)


@pytest.fixture(scope="module")
def builder() -> Iterator[subprocess.Popen[str]]:
    """The process that builds for all tests."""
    command, pipe = [sys.executable, "-m", "tests.helpers.builds"], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        yield process


@pytest.fixture(scope="module")
def built(builder: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A tree that was built once, for all tests: they get copies."""
    folder = tmp_path_factory.mktemp("built")
    tree = Tree(folder / "tree", folder / "cc", builder)
    (tree.folder / "ops").mkdir(parents=True)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree.folder)
    (tree.folder / "ops" / "_library.pyx").write_text('include "_part.pxi"\n', encoding="utf-8")
    (tree.folder / "ops" / "_part.pxi").write_text("one = 1\n", encoding="utf-8")
    tree.compiler.write_text(COMPILER.format(calls=tree.calls), encoding="utf-8")
    tree.tools.mkdir()
    (tree.tools / "objcopy").write_text("#!/bin/sh\n", encoding="utf-8")  # of what is no object file
    for program in (tree.compiler, tree.tools / "objcopy"):
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert tree.build()
    return tree


@pytest.fixture
def tree(built: Tree, tmp_path: Path) -> Iterator[Tree]:
    """A copy of the tree, without the folder where it was built; pip builds in one of its own."""
    shutil.copytree(built.folder, tmp_path / "tree", ignore=shutil.ignore_patterns("build"))
    compiler = built.compiler.read_text(encoding="utf-8")
    yield Tree(tmp_path / "tree", built.compiler, built.builder)
    built.compiler.write_text(compiler, encoding="utf-8")


def test_unchanged_tree_is_not_compiled_again(tree: Tree) -> None:
    for path in (tree.folder / "ops").iterdir():
        os.utime(path)  # dates say nothing: a checkout or a copy makes new ones
    assert not tree.build()
    assert tree.library.read_text() == "built\n"


CHANGES: dict[str, Callable[[Tree], object]] = {
    "a source": lambda tree: tree.append("ops/_library.pyx", "two = 2\n"),
    "an included file": lambda tree: tree.append("ops/_part.pxi", "two = 2\n"),
    "a new file": lambda tree: tree.append("ops/_other.pxd", "cdef int two\n"),
    "setup.py": lambda tree: tree.append("setup.py", "# another line\n"),
    "flags": lambda tree: tree.variables.update(CFLAGS="-O0"),
    "the kind of build": lambda tree: tree.variables.update(NARROW_BUILD="debug"),
    "where headers are": lambda tree: tree.variables.update(CPATH="/elsewhere"),
    "the compiler": lambda tree: tree.compiler.write_text(tree.compiler.read_text().replace("n 1", "n 2")),
    "the library": lambda tree: tree.library.write_text("another"),
    "no library": lambda tree: tree.library.unlink(),
    "no stamp": lambda tree: (tree.folder / "ops" / "_library.stamp").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_input_is_compiled(tree: Tree, change: str) -> None:
    CHANGES[change](tree)
    assert tree.build()
    assert tree.library.read_text() == "built\n"


def test_a_library_that_python_would_prefer_is_removed(tree: Tree) -> None:
    """An older version of the project left one with the name of one Python version."""
    old = tree.folder / "ops" / "_library.cpython-311-x86_64-linux-gnu.so"
    old.write_text("old", encoding="utf-8")
    assert not tree.build()
    assert not old.exists()


def test_failed_build_is_not_taken_for_a_fresh_one(tree: Tree) -> None:
    good = (tree.folder / "ops" / "_part.pxi").read_text()
    tree.append("ops/_part.pxi", "this is no Cython\n")
    with pytest.raises(AssertionError, match="no Cython"):
        tree.build()
    (tree.folder / "ops" / "_part.pxi").write_text(good + "two = 2\n", encoding="utf-8")
    assert tree.build()

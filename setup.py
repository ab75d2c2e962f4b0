"""Build the native operator library ``ops._library`` (Cython, one shared object, no other header or library).

The library uses CPython's limited API: one build serves every Python from 3.11 on. A build in the tree, as
``pip install -e .`` makes it, writes a stamp beside the library; while no source, flag, header or compiler
changes, and nobody changes the library, the next build keeps it.

The environment variable NARROW_BUILD chooses another build than the default one: ``debug`` (no optimization,
for a debugger) or ``sanitize`` (AddressSanitizer and UndefinedBehaviorSanitizer, see tests/sanitize.sh).
"""

import ast
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path

import Cython
from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

FOLDERS = ("ops", "transforms", "tools")
IN_TREE = bool({"editable_wheel", "develop", "--inplace"} & set(sys.argv))
PREFIX = "" if IN_TREE else "onnx_narrow."
NAME = f"{PREFIX}ops._library"
SOURCES = sorted(str(path) for path in Path("ops").iterdir() if path.suffix in (".pyx", ".pxi", ".pxd"))
STAMP = Path("ops/_library.stamp")
TOOLS = {path.stem for path in Path("tools").glob("[!_]*.py")}
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
}

# Exactness needs -ffp-contract=off (no fused multiply-add); the two -fno flags let the loops vectorize. -g0,
# because many a Python's own flags have -g, which takes a quarter of the time.
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
FLAGS: dict[str, dict[str, tuple[list[str], list[str]]]] = {
    "unix": {
        "": (["-O3", "-g0", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"], []),
        "debug": (["-O0", "-g", "-ffp-contract=off"], []),
        "sanitize": (["-O1", "-g", "-ffp-contract=off", *SANITIZERS], SANITIZERS),
    },
    "msvc": {
        "": (["/O2", "/fp:precise"], []),
        "debug": (["/Od", "/Zi"], ["/DEBUG"]),
        "sanitize": (["/O1", "/Zi", "/fsanitize=address"], []),
    },
}

# Only CPython has the limited API, and its builds without the global lock do not.
LIMITED = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
WEAK = ("--weaken-symbol=Py*", "--weaken-symbol=_Py*", "--weaken-symbol=!PyInit_*")
OLDEST = (3, 11)  # as requires-python in pyproject.toml
COMPILERS_READ = ("CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "CL", "_CL_", "INCLUDE")  # from the environment
_MODULE = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})(?:\.[a-zA-Z]\w*)+")


class BuildLibrary(build_ext):
    """Choose the flags by the compiler and by NARROW_BUILD; keep a library that would come out the same."""

    def build_extensions(self) -> None:
        kind = os.environ.get("NARROW_BUILD", "")
        builds = FLAGS.get(self.compiler.compiler_type, FLAGS["unix"])
        if kind not in builds:
            raise ValueError(
                f"NARROW_BUILD is '{kind}', but must be unset or one of {', '.join(filter(None, builds))}"
            )
        for extension in self.extensions:
            extension.extra_compile_args, extension.extra_link_args = builds[kind]
            extension.define_macros = [("NARROW_NO_DISPATCH", "1")] if kind else []
            if self.compiler.compiler_type != "msvc" and not kind:
                extension.define_macros += [("CYTHON_INLINE", "inline __attribute__((always_inline))")]
            if LIMITED:
                extension.define_macros += [("Py_LIMITED_API", "0x{:02X}{:02X}0000".format(*OLDEST))]
        super().build_extensions()

    def build_extension(self, extension: Extension) -> None:
        """Compile, unless the library in the tree was made from what is here now."""
        self.inputs = self.digest_inputs(extension)
        library = STAMP.parent / Path(self.get_ext_filename(extension.name)).name
        if not self.force and is_fresh(library, self.inputs):
            self.mkpath(str(Path(self.get_ext_fullpath(extension.name)).parent))
            self.copy_file(str(library), self.get_ext_fullpath(extension.name))
            return
        (generated,) = cythonize(
            Extension(extension.name, list(extension.sources)),
            compiler_directives=DIRECTIVES,
            build_dir=self.build_temp,
            force=True,
        )
        extension.sources = generated.sources
        self.force = True  # dates do not tell that flags have changed
        super().build_extension(extension)

    def get_libraries(self, extension: Extension) -> list[str]:
        """Make Python's symbols weak, between compiling and linking, if binutils are there.

        A program without Python, in C++ or C#, can then load the library: nothing that it calls uses them.
        """
        objcopy = weakening_tool()
        if objcopy:
            for compiled in self._built_objects:
                subprocess.run([objcopy, "--wildcard", *WEAK, compiled], check=True)
        return super().get_libraries(extension)

    def digest_inputs(self, extension: Extension) -> str:
        """Return a digest of all that the library is made from."""
        parts = [
            sys.version,
            str(sysconfig.get_config_var("INCLUDEPY")),
            sysconfig.get_platform(),
            Cython.__version__,
            *map(str, extension.define_macros),
            *extension.extra_compile_args,
            *extension.extra_link_args,
            *getattr(self.compiler, "compiler_so", []),
            *getattr(self.compiler, "linker_so", []),
            *(os.environ.get(name, "") for name in COMPILERS_READ),
            compiler_version(self.compiler),
            str(weakening_tool() is not None),
        ]
        for path in [*SOURCES, "setup.py"]:
            parts += [path, digest_file(Path(path))]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def copy_extensions_to_source(self) -> None:
        """Put the library into the tree, with its stamp, and remove those that Python would prefer to it."""
        STAMP.unlink(missing_ok=True)
        super().copy_extensions_to_source()
        library = STAMP.parent / Path(self.get_ext_filename(NAME)).name
        for other in STAMP.parent.glob("_library.*"):
            if other.suffix in (".so", ".pyd") and other.name != library.name:
                other.unlink()
        STAMP.write_text(f"{self.inputs}\n{digest_file(library)}\n", encoding="ascii")


class RenamePackages(build_py):
    """Build the folders of the tree as packages in ``onnx_narrow``, under which no other package has them."""

    def build_module(self, module: str, module_file: str, package: str) -> tuple[str, bool]:
        """Copy a module; in a wheel its imports name the packages as they are there."""
        copied = super().build_module(module, module_file, package)
        if not IN_TREE:
            path = Path(copied[0])
            path.write_text(renamed(path.read_text(encoding="utf-8")), encoding="utf-8")
        return copied


def renamed(source: str) -> str:
    """Return the source of a module whose imports of ``ops``, ``transforms`` and ``tools`` are in PREFIX.

    So are the names of their modules in strings; tools are commands of ``onnx-narrow`` there. Raises
    ValueError for an import whose name the module could not use any more.
    """
    lines = source.splitlines(keepends=True)
    for line, column, added in sorted(_additions(source), reverse=True):
        head = lines[line - 1].encode()
        lines[line - 1] = (head[:column] + added.encode() + head[column:]).decode()
    for (first, start), (last, end) in reversed(list(_strings("".join(lines)))):
        text = lines[first - 1 : last]
        tail = text[-1][end:]
        text[-1] = text[-1][:end]
        inside = "".join(text)[start:]
        changed = text[0][:start] + _words(inside) + tail
        lines[first - 1 : last] = changed.splitlines(keepends=True)
    return "".join(lines)


def _additions(source: str) -> Iterator[tuple[int, int, str]]:
    """Yield what is added where, as a line and a column in bytes, to names of packages that are imported."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and not node.level and _is_ours(node.module or ""):
            yield node.lineno, node.col_offset + len("from "), PREFIX
        elif isinstance(node, ast.Import):
            for name in filter(lambda one: _is_ours(one.name), node.names):
                yield name.lineno, name.col_offset, PREFIX
                if name.asname is None and name.name not in FOLDERS:
                    raise ValueError(f"line {node.lineno}: write import {name.name} with 'as', or 'from'")
                if name.asname is None:
                    yield name.lineno, name.col_offset + len(name.name), f" as {name.name}"


def _strings(source: str) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield where strings begin and end, as lines and columns; of a formatted one, where it is text."""
    text = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in text:
            yield token.start, token.end


def _words(text: str) -> str:
    """Return a string as it is where the folders are packages of ``onnx_narrow``."""
    text = re.sub(r"python -m tools\b\.?", lambda found: f"onnx-narrow{' ' * found[0].endswith('.')}", text)
    return _MODULE.sub(_renamed_module, text)


def _renamed_module(found: re.Match[str]) -> str:
    name = found[0]
    if name.removeprefix("tools.") in TOOLS:
        return f"onnx-narrow {name.removeprefix('tools.')}"
    package, _, rest = name.partition(".")
    first = Path(package, rest.partition(".")[0])
    return f"{PREFIX}{name}" if first.is_dir() or first.with_suffix(".py").is_file() else name


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in FOLDERS


def is_fresh(library: Path, inputs: str) -> bool:
    """Whether the stamp says that the library, as it is, was made from these inputs."""
    try:
        return STAMP.read_text(encoding="ascii").split() == [inputs, digest_file(library)]
    except (OSError, ValueError):
        return False


def weakening_tool() -> str | None:
    """Return the path of objcopy, which comes with gcc, where object files are ELF files."""
    return shutil.which("objcopy") if sys.platform == "linux" else None


def digest_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def compiler_version(compiler: object) -> str:
    """Return what the compiler says of itself, or for MSVC its path, which has its version."""
    command = getattr(compiler, "compiler_so", None)
    if command is None:
        if not getattr(compiler, "initialized", True):
            compiler.initialize()
        return str(getattr(compiler, "cc", ""))
    try:
        done = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout


def packages() -> dict[str, str]:
    """Return the folders of the packages by their names."""
    names = find_packages(include=["onnx_narrow*", *(f"{folder}*" for folder in FOLDERS)])
    return {f"{PREFIX if _is_ours(name) else ''}{name}": name.replace(".", "/") for name in names}


PACKAGES = packages()

setup(
    cmdclass={"build_ext": BuildLibrary, "build_py": RenamePackages},
    packages=list(PACKAGES),
    package_dir={"": "."} if IN_TREE else PACKAGES,
    ext_modules=[
        Extension(
            NAME,
            ["ops/_library.pyx"],
            depends=SOURCES,  # a source distribution carries them
            export_symbols=["RegisterCustomOps"],
            py_limited_api=LIMITED,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp{}{}".format(*OLDEST)}} if LIMITED else {},
)

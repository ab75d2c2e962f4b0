"""Build the native operator library ``ops._library`` (Cython, one shared object, no other header or library).

The environment variable NARROW_BUILD chooses another build than the default one:
``debug`` (no optimization, for a debugger) or ``sanitize`` (AddressSanitizer and UndefinedBehaviorSanitizer,
see tests/sanitize.sh).
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
}

# Exactness needs -ffp-contract=off (no fused multiply-add); the two -fno flags let the loops vectorize.
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
FLAGS: dict[str, dict[str, tuple[list[str], list[str]]]] = {
    "unix": {
        "": (["-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"], []),
        "debug": (["-O0", "-g", "-ffp-contract=off"], []),
        "sanitize": (["-O1", "-g", "-ffp-contract=off", *SANITIZERS], SANITIZERS),
    },
    "msvc": {
        "": (["/O2", "/fp:precise"], []),
        "debug": (["/Od", "/Zi"], ["/DEBUG"]),
        "sanitize": (["/O1", "/Zi", "/fsanitize=address"], []),
    },
}


class BuildLibrary(build_ext):
    """Choose the flags by the compiler that is found and by NARROW_BUILD."""

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
        super().build_extensions()


setup(
    cmdclass={"build_ext": BuildLibrary},
    ext_modules=cythonize(
        Extension(
            "ops._library",
            ["ops/_library.pyx"],
            depends=sorted(
                str(path) for path in Path("ops").glob("*.px[di]")
            ),  # a source distribution carries them
            export_symbols=["RegisterCustomOps"],
        ),
        compiler_directives=DIRECTIVES,
    ),
)

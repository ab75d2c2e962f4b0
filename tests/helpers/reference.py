"""The generated parts of the reference: ``python -m tests.helpers.reference [--update]``.

A document marks such a part with ``<!-- generated: NAME ... -->`` and ``<!-- end -->``. Without ``--update``
the command names what differs from the code, and ends with 1 if anything does.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable

from tests.helpers import reference_docstrings, reference_tables
from tests.helpers.documents import DOCUMENTS, ROOT, read

MARKED = re.compile(r"(<!-- generated: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)

MAKERS: dict[str, Callable[..., str]] = {
    "attributes": reference_tables.attributes,
    "formats": reference_tables.formats,
    "keys": reference_tables.keys,
    "presets": reference_tables.presets,
    "targets": reference_tables.targets,
    "several": reference_tables.several,
    "tool": reference_tables.tool,
    "function": reference_docstrings.function,
    "rewrite": reference_docstrings.rewrite,
}
"""What makes a part, by the first word of its name; the others are arguments."""


def generated(text: str) -> str:
    """Return a document with its marked parts as the code has them."""
    return MARKED.sub(lambda found: f"{found[1]}\n{_make(found[2])}\n\n{found[3]}", text)


def _make(name: str) -> str:
    kind, *arguments = name.split()
    return MAKERS[kind](*arguments).strip()


def main() -> int:
    """Compare or write the marked parts of all documents."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--update", action="store_true")
    update = parser.parse_args().update
    stale = [document for document in DOCUMENTS if generated(read(document)) != read(document)]
    for document in stale:
        if update:
            (ROOT / document).write_text(generated(read(document)), encoding="utf-8")
        else:
            print(f"{document}: run python -m tests.helpers.reference --update")
    return int(bool(stale) and not update)


if __name__ == "__main__":
    sys.exit(main())

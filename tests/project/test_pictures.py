"""The pictures of the documents are those that their command draws from the example; documents show each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.examples.pictures import FOLDER
from tests.helpers.documents import DOCUMENTS, ROOT, read

PICTURES = sorted(path.name for path in FOLDER.iterdir())
MEASURED = {"scale.svg"}  # by tests.benchmarks.bench_scale, different on each machine
LARGEST = 100_000


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    subprocess.run(
        [sys.executable, "-m", "tests.examples.pictures", str(folder)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
    )
    return folder


def test_the_command_draws_the_pictures_that_are_kept(drawn: Path) -> None:
    assert sorted(path.name for path in drawn.iterdir()) == sorted({*PICTURES} - MEASURED)


def test_pictures_are_small_drawings_with_a_background_of_their_own(drawn: Path) -> None:
    for path in [*drawn.iterdir(), *FOLDER.iterdir()]:
        assert path.stat().st_size < LARGEST
        first = next(one for one in ElementTree.parse(path).iter() if one.tag.endswith(("rect", "path")))
        assert "#f" in (first.get("fill") or first.get("style") or ""), path  # a light page under dark words


@pytest.mark.parametrize("name", sorted({*PICTURES} - MEASURED))
def test_pictures_say_what_is_drawn_today(name: str, drawn: Path) -> None:
    assert words(FOLDER / name) and words(FOLDER / name) == words(drawn / name)


def words(path: Path) -> list[str]:
    """Return the texts of a picture in their order."""
    return [
        "".join(one.itertext()).strip() for one in ElementTree.parse(path).iter() if one.tag.endswith("}text")
    ]


@pytest.mark.parametrize("name", PICTURES)
def test_a_document_shows_each_picture(name: str) -> None:
    assert any(f"pictures/{name})" in read(document) for document in DOCUMENTS)

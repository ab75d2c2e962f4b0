"""Both converters refuse outputs that would hurt before they read the input, and options they do not know."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import build
from tests.helpers.refusal import Scene

RUBBISH = b"not a model: whoever reads it complains of it"


# Paths of the output. The input is rubbish: an error that speaks of the output shows that it was not read.


def test_missing_output_folder_is_noticed_before_any_work(scene: Scene) -> None:
    scene.write(RUBBISH)
    assert "nowhere" in scene.refused(target=scene.folder / "nowhere" / "result.onnx")


def test_output_folder_that_is_a_file(scene: Scene) -> None:
    scene.write(RUBBISH)
    assert "out/file" in scene.refused(target=_touched(scene.folder / "out" / "file") / "result.onnx")


def test_output_that_is_a_folder(scene: Scene) -> None:
    scene.write(RUBBISH)
    for options in ([], ["--force"]):
        assert str(scene.target.parent) in scene.refused(*options, target=scene.target.parent)


def test_existing_output_without_force(scene: Scene) -> None:
    scene.write(RUBBISH)
    scene.target.write_bytes(b"precious")
    message = scene.refused()
    assert "result.onnx" in message and "--force" in message


def test_existing_output_with_force_is_replaced(scene: Scene) -> None:
    scene.write()
    scene.target.write_bytes(b"precious")
    assert scene.convert("--force") == (0, "")
    assert scene.target.read_bytes() != b"precious"


def test_existing_output_stays_when_the_conversion_fails(scene: Scene) -> None:
    scene.write(RUBBISH)
    scene.target.write_bytes(b"precious")
    assert "model.onnx" in scene.refused("--force")


ALIASES: dict[str, Callable[[Path, Path], object]] = {
    "the same path": lambda source, alias: None,
    "symbolic link": lambda source, alias: alias.symlink_to(source),
    "hard link": lambda source, alias: os.link(source, alias),
}


@pytest.mark.parametrize("alias", ALIASES)
@pytest.mark.parametrize("options", [[], ["--force"]], ids=["", "force"])
def test_output_that_is_the_input_by_another_name(scene: Scene, alias: str, options: list[str]) -> None:
    source = scene.write()
    other = source if alias == "the same path" else source.with_name("alias.onnx")
    ALIASES[alias](source, other)
    assert other.name in scene.refused(*options, target=other)


@pytest.mark.parametrize("spelling", ["../in/model.onnx", "./../in/./model.onnx", "../out/../in/model.onnx"])
def test_output_that_is_the_input_by_another_spelling(scene: Scene, spelling: str) -> None:
    scene.write()
    assert "model.onnx" in scene.refused("--force", target=spelling)


def test_output_that_is_the_external_data_of_the_input(scene: Scene) -> None:
    build.save_external(build.dense(dtype=scene.dtype), scene.source, "weights.data")
    assert "weights.data" in scene.refused("--force", target=scene.source.with_name("weights.data"))


def _data_file(scene: Scene) -> str:
    """Return the name that ``--save_as_external_data`` gives to the data of ``result.onnx``."""
    scene.write(build.dense(256, dtype=scene.dtype))
    assert scene.convert("--save_as_external_data") == (0, "")
    (name,) = {path.name for path in scene.target.parent.iterdir()} - {scene.target.name}
    for path in scene.target.parent.iterdir():
        path.unlink()
    return name


def test_existing_data_file_without_force(scene: Scene) -> None:
    data = scene.target.with_name(_data_file(scene))
    data.write_bytes(b"precious")
    message = scene.refused("--save_as_external_data")
    assert data.name in message and "--force" in message


def test_new_data_file_that_is_the_data_of_the_input(scene: Scene) -> None:
    name = _data_file(scene)
    build.save_external(build.dense(256, dtype=scene.dtype), scene.source, name)
    target = scene.source.with_name(scene.target.name)
    assert name in scene.refused("--force", "--save_as_external_data", target=target)


# Options


@pytest.mark.parametrize(
    "options",
    [
        ["--frobnicate"],
        ["--formt", "with_cast"],
        ["--form", "with_cast"],
        ["--exclude_nodes", "conv"],
        ["--save-as-external"],
        ["stray.onnx"],
    ],
    ids=" ".join,
)
def test_unknown_or_misspelt_or_shortened_option(scene: Scene, options: list[str]) -> None:
    scene.write()
    assert options[0] in scene.refused(*options, code=2)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--format", "bf17"), ("--format", ""), ("--weights", "int3"), ("--domain", "example.org")],
)
def test_unknown_choice(scene: Scene, option: str, value: str) -> None:
    scene.write()
    message = scene.refused(option, value, code=2)
    assert option in message and repr(value) in message


@pytest.mark.parametrize("option", ["--input", "--output", "--format"])
def test_option_without_its_value(scene: Scene, option: str) -> None:
    scene.write()
    assert option in scene.refused(option, code=2)


@pytest.mark.parametrize("missing", ["--input", "--output"])
def test_required_option(scene: Scene, missing: str) -> None:
    paths = {"--input": str(scene.write()), "--output": str(scene.target)}
    del paths[missing]
    code, errors = scene.run(*[word for pair in paths.items() for word in pair])
    assert missing in scene.message(code, errors, code=2)
    assert not scene.target.exists()


@pytest.mark.parametrize("pattern", ["conv*", "MATMUL0", "matmul", ""])
def test_node_pattern_that_matches_nothing(scene: Scene, pattern: str) -> None:
    scene.write()
    assert repr(pattern) in scene.refused("--exclude-node", "matmul*", "--exclude-node", pattern)


@pytest.mark.parametrize("operator", ["Conv", "Matmul", "NoSuchOperator", ""])
def test_operator_that_the_model_does_not_have(scene: Scene, operator: str) -> None:
    scene.write()
    assert repr(operator) in scene.refused("--exclude-op", "MatMul", "--exclude-op", operator)


def _touched(path: Path) -> Path:
    path.touch()
    return path

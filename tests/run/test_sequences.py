"""Sequences run step by step with states fed back. Oracle: the recurrence in NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from transforms import model_io
from transforms.graph.state_outputs import first_state, state_pairs
from transforms.run.run_model import open_model
from transforms.run.sequences import Sequences

LEAKY = """<ir_version: 8, opset_import: ["": 17]>
main (float[1, 3] x, float[1, 3] h) => (float[1, 3] y, float[1, 3] h_out) <float half = {0.5}> {
    part = Mul (h, half)  h_out = Add (part, x)  y = Relu (h_out)
}"""
CACHE = """<ir_version: 8, opset_import: ["": 17]>
main (float[B, 1, 2] x, float[B, 1, P, 2] past_key_values)
=> (float[B, 1, 2] y, float[B, 1, T, 2] present) <int64[1] axis = {2}, int64[1] head = {1}> {
    new = Unsqueeze (x, head)
    present = Concat <axis = 2> (past_key_values, new)  y = ReduceSum <keepdims = 0> (present, axis)
}"""
X = np.random.default_rng(0).standard_normal((5, 1, 3)).astype(np.float32)


def sequences(text: str, tmp_path: Path, given: dict[str, str] | None = None) -> Sequences:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return Sequences(open_model(path), model_io.load(path), tmp_path / "data", named_states=given)


def states(x: np.ndarray) -> list[np.ndarray]:
    found = [np.zeros_like(x[0])]
    for one in x:
        found.append(found[-1] * np.float32(0.5) + one)
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def test_an_array_is_cut_along_its_first_axis(data: Path, tmp_path: Path) -> None:
    np.save(data / "speech.npy", X)
    found = sequences(LEAKY, tmp_path)
    ((name, steps),) = list(found)
    made = list(steps)
    assert (name, len(found), found.states) == ("speech", 1, {"h": "h_out"})
    assert [one.name for one in made] == [f"speech.00000{i}" for i in range(1, 6)]
    for step, x, before, after in zip(made, X, states(X), states(X)[1:], strict=False):
        assert np.array_equal(step.feed["x"], x) and np.array_equal(step.feed["h"], before)
        assert np.array_equal(step.outputs["h_out"], after)


def test_a_folder_holds_steps_in_natural_order(data: Path, tmp_path: Path) -> None:
    for folder, order in (("b", range(5)), ("a", reversed(range(5)))):
        (data / folder).mkdir()
        for number, i in enumerate(order):
            np.savez(data / folder / f"step{number + 8}.npz", x=X[i])  # step10 comes after step9
    made = {name: [step.outputs["h_out"] for step in steps] for name, steps in sequences(LEAKY, tmp_path)}
    assert list(made) == ["a", "b"]
    assert np.array_equal(made["a"], states(X[::-1])[1:]) and np.array_equal(made["b"], states(X)[1:])


def test_a_cache_is_empty_at_first_and_grows(data: Path, tmp_path: Path) -> None:
    np.savez(data / "text.npz", x=X[:, None, :, :2])
    ((_, steps),) = list(sequences(CACHE, tmp_path))
    assert [step.feed["past_key_values"].shape for step in steps] == [(1, 1, i, 2) for i in range(5)]


def test_arrays_of_the_rank_of_an_input_are_the_same_at_each_step(data: Path, tmp_path: Path) -> None:
    text = LEAKY.replace("float[1, 3] h)", "float[1, 3] h, float[1] gain)").replace(
        "Relu (h_out)", "Mul (h_out, gain)"
    )
    np.savez(data / "a.npz", x=X, gain=np.float32([2]))
    ((_, steps),) = list(sequences(text, tmp_path))
    assert np.array_equal([step.outputs["y"] for step in steps], 2 * np.array(states(X)[1:]))


def test_a_state_that_is_named_begins_with_what_the_samples_hold(data: Path, tmp_path: Path) -> None:
    np.savez(data / "a.npz", x=X, h=X[0])
    ((_, steps),) = list(sequences(LEAKY, tmp_path, {"h": "h_out"}))
    first, second, *_ = list(steps)
    assert np.array_equal(first.feed["h"], X[0]) and np.array_equal(second.feed["h"], first.outputs["h_out"])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X[0]}, "no array has a first axis of time"),
        ({"x": X, "z": X}, r"a\.npz.*input 'z' is unknown, legal are x, h"),
        ({"x": X, "h": X}, "the samples hold arrays for all inputs; if 'h' is a state, leave its arrays out"),
        ({"x": X[:, :, :2]}, r"'a\.npz, step 1', input 'x': shape \[1, 2\] instead of \[1, 3\]"),
    ],
)
def test_sequences_that_do_not_fit(
    arrays: dict[str, np.ndarray], message: str, data: Path, tmp_path: Path
) -> None:
    np.savez(data / "a.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        [list(steps) for _, steps in sequences(LEAKY, tmp_path)]


def test_folders_without_sequences_and_with_the_same_name_twice(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no sequence"):
        sequences(LEAKY, tmp_path)
    np.save(data / "a.npy", X)
    np.savez(data / "a.npz", x=X)
    with pytest.raises(ValueError, match="the same name except for the ending"):
        sequences(LEAKY, tmp_path)


def pairs(text: str, given: dict[str, str] | None = None) -> dict[str, str]:
    return state_pairs(model_io.load(onnx.parser.parse_model(text)), given)


def test_states_are_paired_by_names_then_by_shapes() -> None:
    two = LEAKY.replace("float[1, 3] h)", "float[1, 3] h, float[2] c)").replace(
        "float[1, 3] h_out)", "float[1, 3] h_out, float[2] cell_state)"
    )
    two = two.replace("y = Relu", "cell_state = Neg (c)  y = Relu")
    assert pairs(two) == {"h": "h_out", "c": "cell_state"}
    assert pairs(two, {"c": "cell_state"}) == {"c": "cell_state", "h": "h_out"}
    assert pairs(two, {"h": "y"}) == {"h": "y", "c": "cell_state"}


def test_models_without_known_states_are_refused() -> None:
    plain = LEAKY.replace("h_out", "z").replace(" h,", " b,").replace(" h)", " b)").replace("(h,", "(b,")
    with pytest.raises(ValueError, match="no output of the model is known to be a state: name them, states"):
        pairs(plain)
    assert pairs(plain, {"b": "z"}) == {"b": "z"}
    with pytest.raises(ValueError, match="all inputs would be states"):
        pairs(plain, {"b": "z", "x": "y"})
    with pytest.raises(ValueError, match="input 'w' is unknown, legal are x, b"):
        pairs(plain, {"w": "z"})


def test_the_first_state_is_empty_where_it_grows() -> None:
    assert first_state(["batch", 2, "past", 8], ["batch", 2, "past + 1", 8]) == [1, 2, 0, 8]
    assert first_state([2, None, 64], [2, None, 64]) == [2, 1, 64]

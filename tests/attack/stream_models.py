"""Random models that read a stream: recurrent cells, causal convolutions, averages and counters, whose states
are inputs and outputs of any rank under any names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import DTypeLike

from tests.attack.draft import Draft, End, Random
from tests.attack.rolled import Feeds, Story

_STATE_NAMES: tuple[tuple[str, str], ...] = (
    *(("{s}0", "{s}n"), ("{s}0", "{s}N"), ("{s}_in", "{s}_out"), ("cached_{s}", "new_cached_{s}")),
    *(("prev_{s}", "next_{s}"), ("state_{s}", "state_{s}_new"), ("past.{s}", "present.{s}")),
    *(("{s}", "{s}_out"), ("in_cache_{s}", "out_cache_{s}")),
)
"""How exporters name a state before and after: only the direction differs."""
_ARBITRARY = ("{s}x", "q{s}2r")
"""Names that say nothing, for which --state is given."""
_SIGNALS = (
    *(("x", "y"), ("audio_in", "audio_out"), ("mag_in", "mask"), ("noisy", "clean"), ("frame", "frame_new")),
    *(("input", "output"), ("file", "result"), ("feats", "hidden"), ("x", "memory")),
)
"""Names of what is read and what is made; some look like a state's, and are none."""


@dataclass
class Stream:
    """A model with states: the shapes of its signals, its pairs, and those that --state is given for."""

    draft: Draft
    signal: str
    result: str
    width: int
    names: tuple[str, str]
    names_all: bool
    inputs: dict[str, End] = field(default_factory=dict)
    outputs: dict[str, End] = field(default_factory=dict)
    pairs: dict[str, str] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    constant: Feeds = field(default_factory=dict)
    model: onnx.ModelProto = field(default_factory=onnx.ModelProto)

    def state(self, letter: str, shape: list[int], dtype: DTypeLike = np.float32) -> tuple[str, str]:
        """Add a state and return its input and its output."""
        is_odd = self.draft.rng.random() < 0.15
        taken, back = (name.format(s=letter) for name in (_ARBITRARY if is_odd else self.names))
        self.inputs[taken], self.outputs[back] = (shape, dtype), (shape, dtype)
        self.pairs[taken] = back
        if is_odd or self.names_all:
            self.given[taken] = back
        return taken, back


def stream(rng: Random) -> Stream:
    """Return a model of one to three cells in a row, with a second result in some."""
    signal, result = _SIGNALS[int(rng.integers(len(_SIGNALS)))]
    width = int(rng.choice((8, 12, 16)))
    names = _STATE_NAMES[int(rng.integers(len(_STATE_NAMES)))]
    built = Stream(Draft(rng), signal, result, width, names, bool(rng.random() < 0.4))
    built.inputs[signal] = [1, width], np.float32
    x = signal
    cells = [CELLS[int(i)] for i in rng.choice(len(CELLS), int(rng.integers(1, 4)))]
    for i, cell in enumerate(cells):
        x = cell(built, x, "hcdgr"[i])
    if rng.random() < 0.3:
        x = built.draft.op("Mul", [x, _gain(built)])
    built.draft.op("MatMul", [x, built.draft.weight(width, 6)], result)
    ends: dict[str, End] = {result: ([1, 6], np.float32)}
    if rng.random() < 0.4:
        side = str(rng.choice(("energy", "logit", "length")))
        built.draft.op("MatMul", [built.draft.op("Relu", [x]), built.draft.weight(width, 6, scale=0.1)], side)
        ends[side] = [1, 6], np.float32
    every = ends | built.outputs
    order = [list(every)[i] for i in rng.permutation(len(every))]
    built.model = built.draft.model(built.inputs, {name: every[name] for name in order})
    return built


def _gain(built: Stream) -> str:
    """Add an input that is the same at each step, and no output takes back."""
    built.inputs["gain"] = [1, built.width], np.float32
    built.constant["gain"] = np.full((1, built.width), 1.5, np.float32)
    return "gain"


def _mixed(built: Stream, x: str, state: str, keep: float = 0.7) -> str:
    draft, width = built.draft, built.width
    new = draft.op("MatMul", [x, draft.weight(width, width)])
    return draft.op("Add", [new, draft.op("MatMul", [state, draft.weight(width, width, scale=keep)])])


def _elman(built: Stream, x: str, letter: str) -> str:
    h, back = built.state(letter, [1, built.width])
    return built.draft.op("Tanh", [_mixed(built, x, h)], back)


def _deep_elman(built: Stream, x: str, letter: str) -> str:
    """A state with dimensions of one around it, as of layers and directions."""
    draft, ones = built.draft, [1] * int(built.draft.rng.integers(1, 3))
    h, back = built.state(letter, [*ones, 1, built.width])
    flat = draft.op("Reshape", [h, draft.integers(1, built.width)])
    new = draft.op("Tanh", [_mixed(built, x, flat)])
    draft.op("Reshape", [new, draft.integers(*ones, 1, built.width)], back)
    return new


def _lstm(built: Stream, x: str, letter: str) -> str:
    """A layer of LSTM or GRU, of one step."""
    draft, width = built.draft, built.width
    op, gates = (("LSTM", 4), ("GRU", 3))[int(draft.rng.integers(2))]
    states = [built.state(letter, [1, 1, width])]
    if op == "LSTM":
        states.append(built.state(f"{letter}c", [1, 1, width]))
    numbers = draft.rng.standard_normal((2, 1, gates * width, width)) / width**0.5
    weights = [draft.constant(array.astype(np.float32)) for array in numbers]
    step = draft.op("Reshape", [x, draft.integers(1, 1, width)])
    made = draft.names.tensor()
    taken, back = zip(*states, strict=True)
    draft.node(op, [step, *weights, "", "", *taken], [made, *back], hidden_size=width)
    return draft.op("Reshape", [made, draft.integers(1, width)])


def _causal_conv(built: Stream, x: str, letter: str) -> str:
    """A convolution over the last steps, which a state of rank 3 or 4 holds."""
    draft, width, size = built.draft, built.width, int(built.draft.rng.integers(2, 5))
    flat = [1] * int(draft.rng.integers(0, 2))
    h, back = built.state(letter, [1, width, *flat, size - 1])
    new = draft.op("Reshape", [x, draft.integers(1, width, *flat, 1)])
    whole = draft.op("Concat", [h, new], axis=-1)
    draft.op("Slice", [whole, draft.integers(1), draft.integers(size), draft.integers(2 + len(flat))], back)
    kernel = draft.weight(width, width, *flat, size)
    made = draft.op("Relu", [draft.op("Conv", [whole, kernel])])
    return draft.op("Reshape", [made, draft.integers(1, width)])


def _average(built: Stream, x: str, letter: str) -> str:
    """A running level of rank 0 or 1 that the signal is divided by."""
    draft, shape = built.draft, [1] * int(built.draft.rng.integers(0, 2))
    h, back = built.state(letter, shape)
    level = draft.op("ReduceMean", [draft.op("Abs", [x])], keepdims=0)
    level = draft.op("Reshape", [level, draft.integers(*shape)]) if shape else level
    kept = draft.op("Mul", [h, draft.floats(0.8)])
    draft.op("Add", [kept, draft.op("Mul", [level, draft.floats(0.2)])], back)
    return draft.op("Div", [x, draft.op("Add", [back, draft.floats(0.5)])])


def _counter(built: Stream, x: str, letter: str) -> str:
    """A number of steps, an integer of rank 0 or 1, that fades the signal in."""
    draft, shape = built.draft, [1] * int(built.draft.rng.integers(0, 2))
    h, back = built.state(f"{letter}_lens", shape, np.int64)
    draft.op("Add", [h, draft.constant(np.ones(shape, np.int64))], back)
    wide = draft.op("Cast", [back], to=onnx.TensorProto.FLOAT)
    faded = draft.op("Sub", [draft.floats(1.0), draft.op("Div", [draft.floats(0.5), wide])])
    return draft.op("Mul", [x, faded])


CELLS: tuple[Callable[[Stream, str, str], str], ...] = (
    *(_elman, _deep_elman, _lstm, _causal_conv, _average, _counter),
)


def story_of(built: Stream, rng: Random, steps: int) -> Story:
    """Return a signal of some steps, with states that are zero before the first."""
    shape = [1, built.width]
    feeds = [{built.signal: rng.standard_normal(shape).astype(np.float32)} for _ in range(steps)]
    first = {name: np.zeros(*built.inputs[name]) for name in built.pairs}
    return Story(built.model, [feed | built.constant for feed in feeds], built.pairs, first)

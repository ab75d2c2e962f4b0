"""Random models with states through ``--sequences``, ``--state`` and ``--min-sqnr``: see README.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.attack.draft import Random
from tests.attack.figures import judge_said, sqnr
from tests.attack.graphs.distances import largest
from tests.attack.graphs.tool_runs import Fallen, say
from tests.attack.rolled import Story, held, in_both, session_of
from tests.attack.stream_models import Stream, story_of, stream
from tests.attack.tried import Tries, on_model

_PART = {"A8W8": 2**-7, "U8S8": 2**-7, "A16W8": 2**-8, "W8": 2**-8, "BF16": 2**-8, "MXINT8": 2**-6}
_HEARD, _DEAF = 0.1, 0.01
"""Parts of the largest output: by how much a state has to move those of the float model, and those of a
result at the least, to say that the one listens to it and the other does not."""


def attack(seed: int, folder: Path) -> str | None:
    """Convert the model of a seed in several ways; return None, or what fell in one line."""
    rng = np.random.default_rng([seed, 12])
    built = stream(rng)
    stories = [story_of(built, rng, 10) for _ in range(3)]
    tries = on_model(built.model, folder)
    _save_sequences(tries, built, stories, as_folders=bool(rng.random() < 0.4))
    tries.save("steps", [feed for story in stories for feed in story.feeds])
    tries.save("firsts", [feed | stories[0].first for story in stories for feed in story.steps])
    tries.attempt("infer", _inferred, built, tries, stories)
    for step in (_as_stream, _for_target, _of_first_steps):
        tries.attempt(step.__name__.strip("_"), step, built, tries, stories, rng)
    return tries.failure


def _save_sequences(tries: Tries, built: Stream, stories: Sequence[Story], *, as_folders: bool) -> None:
    """Write each story as a folder of steps, or as arrays with an axis of time."""
    root = tries.folder / "sequences"
    root.mkdir()
    for i, story in enumerate(stories):
        if as_folders:
            tries.save(f"sequences/q{i}", story.steps)
        else:
            arrays = {name: np.stack([step[name] for step in story.steps]) for name in story.steps[0]}
            tries.write(root / f"q{i}.npz", arrays)


def _named(built: Stream) -> list[str]:
    """Return --state for what no name tells, or for all."""
    return [word for pair in built.given.items() for word in ("--state", "=".join(pair))]


def _inferred(built: Stream, tries: Tries, stories: Sequence[Story]) -> None:
    """tools.infer feeds states back as a loop of ONNX Runtime does."""
    output = tries.folder / "results"
    options = ["--data", str(tries.folder / "sequences"), "--sequences", *_named(built), "--threads", "1"]
    code, said = say("infer", "--input", str(tries.source), "--output", str(output), *options)
    if code:
        raise Fallen(f"not taken: {said}")
    for i, story in enumerate(stories):
        for step, right in enumerate(story.outputs, 1):
            for name in story.results:
                found = np.load(output / name / f"q{i}.{step:06}.npy")
                gap = np.abs(found.astype(np.float64) - right[name]).max(initial=0)
                if gap > 1e-4 * largest(right[name]) + 1e-6:
                    raise Fallen(f"'{name}' of step {step} is {gap:.3g} off a loop of ONNX Runtime")


def _as_stream(built: Stream, tries: Tries, stories: Sequence[Story], rng: Random) -> None:
    """A result runs as a stream, as near to the float model as its format is; what is said of it is true."""
    config = str(rng.choice(list(_PART)))
    options = ["--config", config, "--data", "sequences", "--sequences", *_named(built)]
    options += ["--fast"] if rng.random() < 0.3 else []
    done = tries.convert("quantize", *options, "--no-time", "--threads", "1")
    if done.model is None:
        if "Nothing to do" in done.said:
            return
        raise Fallen(f"{config} is not taken: {done.refusal}")
    for story in stories:
        held(story, done.model, _PART[config])
    feeds = [feed for story in stories for feed in story.feeds]
    right = [outputs for story in stories for outputs in story.outputs]
    runs = [[run(feed) for feed in feeds] for run in in_both(done.model)]
    judge_said(done.said, right, runs, stories[0].results)


_BEYOND = ("only with every layer", "cannot show the target")
"""Refusals of a goal that no choice of layers meets, or that so few samples cannot show."""


def _for_target(built: Stream, tries: Tries, stories: Sequence[Story], rng: Random) -> None:
    """With --min-sqnr all outputs that no input takes back reach the target, on some of the samples."""
    target = int(rng.choice((25, 30, 36, 42)))
    given = (
        ["--data", "sequences", "--sequences", *_named(built)] if rng.random() < 0.5 else ["--data", "steps"]
    )
    options = ["--config", str(rng.choice(("A8W8", "U8S8"))), "--min-sqnr", str(target), "--allow-large"]
    done = tries.convert("quantize", *options, *given, "--no-time", "--threads", "1")
    if done.model is None:
        if "Nothing to do" in done.said or any(words in str(done.refusal) for words in _BEYOND):
            return
        raise Fallen(f"not taken: {done.refusal}")
    run, names, best = session_of(done.model, optimized=True), stories[0].results, -np.inf
    for story in stories:
        for feed, right in zip(story.feeds, story.outputs, strict=True):
            found = run(feed)
            best = max(best, sqnr([right[name] for name in names], [found[name] for name in names]))
    if best < target - 0.5:
        raise Fallen(
            f"'{' '.join(options[1:])}': outputs {names} have {best:.1f} dB in the best of the samples"
        )


def _of_first_steps(built: Stream, tries: Tries, stories: Sequence[Story], rng: Random) -> None:
    """A result of samples of first steps, whose states are zero, listens to its states, or a line names them.

    States of float, for a counter at its first step is a number like any other.
    """
    options = ["--config", str(rng.choice(("A8W8", "U8S8", "A16W8"))), "--data", "firsts", "--fast"]
    done = tries.convert("quantize", *options, "--no-time", "--threads", "1")
    if done.model is None:
        return
    story, first = stories[0], stories[0].first
    runs = session_of(built.model, optimized=False), session_of(done.model, optimized=False)
    for name in (one for one in built.pairs if first[one].dtype == np.float32):
        moved: list[float] = []
        for run in runs:
            with_it = run(story.feeds[-1])
            without = run({**story.feeds[-1], name: first[name]})
            tops = [largest(story.outputs[-1][result]) for result in story.results]
            gaps = [np.abs(with_it[r] - without[r]).max() / top
                    for r, top in zip(story.results, tops, strict=True) if top]  # fmt: skip
            moved.append(float(max(gaps, default=0.0)))
        if moved[0] > _HEARD and moved[1] < _DEAF and name not in done.said:
            raise Fallen(
                f"{options[1]} does not listen to '{name}', which was zero in all samples, without a word"
            )

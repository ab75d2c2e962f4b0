"""The time of a step of one token behind a cache, for a process of its own, which imports what it runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from transforms import model_io
from transforms.graph.state_outputs import found_pairs
from transforms.run.samples import Samples
from transforms.run.turns import clock_for, ratio, take_turns, timed_options
from transforms.runtime.session import OpenModel, RunOptions, open_session

_SECONDS = 10.0  # with each model


def decoding_time(model: Path, quantized: Path, texts: Path) -> float:
    """Return the time of a step relative to that of the float model."""
    caches = found_pairs(model_io.load(model))
    run = timed_options(RunOptions())
    models = [open_session(path, run) for path in (model, quantized)]
    feeds = [_step(one, texts, caches) for one in models]
    before, after = take_turns(models, lambda: [feeds], 50, _SECONDS, clock=clock_for(run), fewest=5)
    return ratio(after, before).median


def _step(model: OpenModel, texts: Path, caches: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return what is fed with the token after the first text; ``caches``: the output that feeds each."""
    feed = dict(next(iter(Samples(texts, model.inputs, limit=1)))[1])
    made = model.run(feed)
    feed |= {fed: made[back] for fed, back in caches.items()}
    count = feed["input_ids"].shape[1]
    feed["input_ids"] = feed["input_ids"][:, :1]
    if "attention_mask" in feed:
        feed["attention_mask"] = np.ones((1, count + 1), feed["attention_mask"].dtype)
    if "position_ids" in feed:
        feed["position_ids"] = np.full((1, 1), count, feed["position_ids"].dtype)
    return feed

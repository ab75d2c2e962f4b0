"""Random decoders with caches through weights of few bits, ``--kv-cache`` and ``--embeddings``: README.md."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from tests.attack.decoders import Decoder, at_once, decoder, random_form, story_of
from tests.attack.draft import Random
from tests.attack.figures import judge_said
from tests.attack.graphs.tool_runs import Fallen, Outcome
from tests.attack.rolled import Feeds, Run, Story, held, in_both, session_of
from tests.attack.tried import Tries, on_model

_PART = {"W8": 2**-8, "W4": 2**-4, "W2": 2**-2, "A8W8": 2**-7, "BF16": 2**-8, "int8": 2**-8, "int4": 2**-3}
"""Half a step of each format beside the largest number of a tensor, or more."""


def attack(seed: int, folder: Path) -> str | None:
    """Convert the decoder of a seed in several ways; return None, or what fell in one line."""
    rng = np.random.default_rng([seed, 11])
    built = decoder(rng, random_form(rng))
    story = story_of(built, rng, (5, 1, 1, 3))
    tries = on_model(built.model, folder)
    samples = _samples(built, story, rng)
    for path, feeds in samples.items():
        tries.save(path, feeds)
    for _ in range(2):
        options = _options(built, rng)
        tries.attempt(" ".join(options), _converted, built, story, tries, options, samples)
    return tries.failure


def _samples(built: Decoder, story: Story, rng: Random) -> dict[str, list[Feeds]]:
    """Return texts from their first token on, and the steps of the story with their caches.

    Each set holds the story, so that no cache has larger numbers there than in the samples.
    """
    batch = len(next(iter(story.first.values())))
    length = int(rng.choice((10, 12)))  # that of the story, or another
    others = [story_of(built, rng, (length,)) for _ in range(7)]
    fits = [one for one in others if len(next(iter(one.first.values()))) == batch] or [story]
    return {
        "texts": [at_once(built, story), *(at_once(built, one) for one in fits)],
        "steps": [*story.feeds, at_once(built, story)],
    }


def _options(built: Decoder, rng: Random) -> list[str]:
    config = str(rng.choice(("W8", "W4", "W4", "A8W8", "BF16", "W2")))
    options = ["--config", config, "--data", str(rng.choice(("texts", "steps"), p=(0.7, 0.3)))]
    if config[0] == "W" and rng.random() < 0.5:
        options += ["--matmul-nbits"]
        options += ["--set", "block_size=32"] if config == "W8" else []
        options += ["--accuracy-level", str(rng.choice((1, 4)))] if rng.random() < 0.5 else []
    if config[0] == "W" and built.form.has_tokens and rng.random() < 0.4:
        options += ["--embeddings", str(rng.choice(("int8", "int4")))]
    if rng.random() < 0.65:
        options += ["--kv-cache", str(rng.choice(("int8", "int8", "int4")))]
    return options + (["--fast"] if rng.random() < 0.5 else [])


def _converted(
    built: Decoder, story: Story, tries: Tries, options: list[str], samples: dict[str, list[Feeds]]
) -> None:
    data = options[options.index("--data") + 1]
    done = tries.convert("quantize", *options, "--no-time", "--threads", "1")
    if done.model is None:
        _is_honest(built, options, done)
        return
    part = max(_PART[word] for word in options if word in _PART)
    first = _first(story, done.model)
    through = partial(_with_codes, _steps_of_encoder(built, done.model))
    held(story, done.model, part, first=first, through=through)
    if "--kv-cache" in options and (data == "steps" or not built.form.has_tokens):
        return  # states of the samples are not those of the result; without a table, the figure is of all
    empty = first if data == "texts" else {}
    runs = [[through(run)({**feed, **empty}) for feed in samples[data]] for run in in_both(done.model)]
    run = session_of(built.model, optimized=False)
    counting = ["logits"] if "--kv-cache" in options else ["logits", *built.pairs.values()]
    judge_said(done.said, [run(feed) for feed in samples[data]], runs, counting)


def _first(story: Story, made: onnx.ModelProto) -> Feeds:
    """Return caches without a token as a result takes them, which has types and sizes of its own."""
    ends = {one.name: one.type.tensor_type for one in made.graph.input}
    found = {}
    for name, array in story.first.items():
        dims = [dim.dim_value for dim in ends[name].shape.dim]
        shape = [known or size for known, size in zip(dims, array.shape, strict=True)]
        found[name] = np.zeros(shape, helper.tensor_dtype_to_np_dtype(ends[name].elem_type))
    return found


def _steps_of_encoder(built: Decoder, made: onnx.ModelProto) -> Feeds:
    """Return the steps of an encoder's keys and values that a result takes as integers."""
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in made.graph.initializer}
    found = {}
    for node in made.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in built.cross:
            steps, shape = arrays[node.input[1]], [1, 1, 1, 1]
            if steps.ndim:
                shape[next(one.i for one in node.attribute if one.name == "axis")] = -1
            found[node.input[0]] = steps.reshape(shape)
    return found


def _with_codes(steps: Feeds, run: Run) -> Run:
    """Return what runs a result on numbers of an encoder, and makes numbers of them."""

    def _run(feeds: Feeds) -> Feeds:
        codes = {name: np.clip(np.rint(feeds[name] / step), -128, 127) for name, step in steps.items()}
        made = run({**feeds, **{name: array.astype(np.int8) for name, array in codes.items()}})
        for name, step in steps.items():
            back = name.replace("past_key_values", "present")
            made[back] = (made[back] * step).astype(feeds[name].dtype)
        return made

    return _run


def _is_honest(built: Decoder, options: list[str], done: Outcome) -> None:
    """Raise Fallen for a decoder that has to be taken, and for a reason that is not true."""
    form, reason = built.form, done.refusal or done.said
    if "nats" in reason:
        return
    if "--kv-cache" not in options:
        raise Fallen(f"not taken: {reason}")
    is_plain = set(form.layouts.values()) == {"bhtc"} and form.dtype == np.float32
    can_be = form.is_fused or "int4" not in options[options.index("--kv-cache") + 1]
    is_kept = options[1][0] == "W" or (options[1] == "A8W8" and form.is_fused)  # no node comes between
    if is_plain and can_be and is_kept:
        raise Fallen(f"caches of the plain layout are not taken: {reason}")
    if not can_be and "GroupQueryAttention" in reason:
        return  # no Concat takes integers of 4 bits
    if form.dtype == np.float16 and "float16" not in reason:
        raise Fallen(f"a wrong reason for a float16 model: {reason}")

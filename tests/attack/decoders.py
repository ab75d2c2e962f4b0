"""Random decoders with caches: of a Concat in any layout, or of GroupQueryAttention, under any names."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import DTypeLike

from tests.attack.draft import Draft, End, Random
from tests.attack.rolled import Feeds, Story

HIDDEN = -3e4
"""What masks add: beyond what counts as an ordinary number, and one of float16."""
_LAYOUTS = {"bhtc": (0, 2, 1, 3), "bhct": (0, 2, 3, 1), "bthc": (0, 1, 2, 3)}
"""Layouts of caches, and where each gets its dimensions from batch, tokens, heads, channels."""
NAMES_OF_GENAI = ("past_key_values.{i}.{long}", "present.{i}.{long}")
_NAMES = (
    *(NAMES_OF_GENAI, ("past_{long}_{i}", "present_{long}_{i}")),
    *(("cache_{short}{i}", "new_cache_{short}{i}"), ("{short}{i}_in", "{short}{i}_out")),
    ("zeta.{short}{i}", "{short}{i}/omega"),
)
_LONG = {"k": "key", "v": "value"}


@dataclass(frozen=True)
class Form:
    """How a decoder is built."""

    layers: int
    heads: int
    kv_heads: int
    channels: int
    words: int
    is_fused: bool
    layouts: dict[str, str]
    has_tokens: bool
    has_cross: bool
    is_tied: bool
    dtype: DTypeLike
    names: tuple[str, str]
    key_scale: float
    head_scale: float

    @property
    def width(self) -> int:
        """Channels of all heads."""
        return self.heads * self.channels

    def cache(self, kind: str, tokens: str) -> list[int | str]:
        """Return the shape of a cache."""
        sizes = {"b": "b", "t": tokens, "h": self.kv_heads, "c": self.channels}
        return [sizes[letter] for letter in self.layouts[kind]]


@dataclass
class Decoder:
    """A decoder in the making: its graph, its form, its ends, and which input each output goes to."""

    draft: Draft
    form: Form
    inputs: dict[str, End] = field(default_factory=dict)
    outputs: dict[str, End] = field(default_factory=dict)
    pairs: dict[str, str] = field(default_factory=dict)
    cross: list[str] = field(default_factory=list)
    model: onnx.ModelProto = field(default_factory=onnx.ModelProto)


def random_form(rng: Random) -> Form:
    """Return a form; half of them join caches by Concat in the plain layout, or are fused."""
    is_fused, is_plain, heads = rng.random() < 0.35, rng.random() < 0.5, int(rng.choice((2, 4)))
    choices = ["bhtc"] if is_fused or is_plain else list(_LAYOUTS)
    layouts = {kind: str(rng.choice(choices)) for kind in "kv"}
    has_tokens = rng.random() < 0.8
    return Form(
        layers=int(rng.integers(1, 4)),
        heads=heads,
        kv_heads=heads // int(rng.choice((1, 2))),
        channels=int(rng.choice((8, 16, 32))),
        words=int(rng.choice((48, 64, 96))),
        is_fused=is_fused,
        layouts=layouts,
        has_tokens=has_tokens,
        has_cross=not is_fused and rng.random() < 0.25,
        is_tied=has_tokens and rng.random() < 0.3,
        dtype=np.float16 if rng.random() < 0.15 else np.float32,
        names=_NAMES[int(rng.integers(len(_NAMES)))],
        key_scale=float(rng.choice((1, 1, 8, 60))),
        head_scale=float(rng.choice((1, 4, 12))),
    )


def decoder(rng: Random, form: Form) -> Decoder:
    """Return a decoder whose model passes the full checker."""
    built = Decoder(Draft(rng, form.dtype), form)
    draft, width = built.draft, form.width
    x = "inputs_embeds"
    table = draft.weight(form.words, width, scale=form.words**0.5)
    if form.has_tokens:
        built.inputs["input_ids"] = ["b", "s"], np.int64
        x = draft.op("Gather", [table, "input_ids"])
    else:
        built.inputs[x] = ["b", "s", width], form.dtype
    if form.is_fused:
        built.inputs["attention_mask"] = ["b", "t"], np.int64
        lengths = _lengths(draft)
    else:
        built.inputs["mask"] = [1, 1, "s", "t"], form.dtype
    for i in range(form.layers):
        attended = _fused(built, x, i, lengths) if form.is_fused else _joined(built, x, i)
        x = draft.op("Add", [x, draft.op("MatMul", [attended, draft.weight(width, width)])])
        inner = draft.op("Relu", [draft.op("MatMul", [x, draft.weight(width, 2 * width)])])
        x = draft.op("Add", [x, draft.op("MatMul", [inner, draft.weight(2 * width, width)])])
    head = draft.op("Transpose", [table], perm=[1, 0]) if form.is_tied else ""
    head = head or draft.weight(width, form.words, scale=form.head_scale)
    draft.op("MatMul", [x, head], "logits")
    ends = {"logits": (["b", "s", form.words], form.dtype), **built.outputs}
    order = [list(built.inputs)[i] for i in rng.permutation(len(built.inputs))]
    built.model = draft.model({name: built.inputs[name] for name in order}, ends)
    return built


def _cache(built: Decoder, kind: str, layer: int) -> tuple[str, str]:
    form = built.form
    words = {"i": layer, "short": kind, "long": _LONG[kind]}
    past, present = (name.format(**words) for name in form.names)
    built.inputs[past] = form.cache(kind, "p"), form.dtype
    built.outputs[present] = form.cache(kind, "t"), form.dtype
    built.pairs[past] = present
    return past, present


def _projected(built: Decoder, x: str, heads: int, scale: float = 1.0) -> str:
    form = built.form
    return built.draft.op("MatMul", [x, built.draft.weight(form.width, heads * form.channels, scale=scale)])


def _lengths(draft: Draft) -> tuple[str, str]:
    """Return the last position of each row and the number of all tokens, as a fused attention takes them."""
    total = draft.reduced("ReduceSum", "attention_mask", 1, keepdims=1)
    last = draft.op("Cast", [draft.op("Sub", [total, draft.integers(1)])], to=onnx.TensorProto.INT32)
    size = draft.op("Gather", [draft.op("Shape", ["attention_mask"]), draft.constant(np.array(1))])
    return last, draft.op("Cast", [size], to=onnx.TensorProto.INT32)


def _fused(built: Decoder, x: str, layer: int, lengths: tuple[str, str]) -> str:
    form, draft = built.form, built.draft
    counts = {"q": form.heads, "k": form.kv_heads, "v": form.kv_heads}
    parts = [_projected(built, x, counts[z], form.key_scale if z == "k" else 1) for z in "qkv"]
    (past_k, k), (past_v, v) = (_cache(built, kind, layer) for kind in "kv")
    attended = draft.names.tensor()
    draft.node("GroupQueryAttention", [*parts, past_k, past_v, *lengths], [attended, k, v],
               domain="com.microsoft", num_heads=form.heads, kv_num_heads=form.kv_heads)  # fmt: skip
    return attended


def _joined(built: Decoder, x: str, layer: int) -> str:
    """Return an attention in standard operators, and one over a cache that is passed through in some."""
    form, draft = built.form, built.draft
    whole = {}
    for kind in "kv":
        past, present = _cache(built, kind, layer)
        new = _projected(built, x, form.kv_heads, form.key_scale if kind == "k" else 1)
        shape = draft.integers(0, 0, form.kv_heads, form.channels)
        new, layout = draft.op("Reshape", [new, shape]), form.layouts[kind]
        if layout != "bthc":
            new = draft.op("Transpose", [new], perm=list(_LAYOUTS[layout]))
        axis = layout.index("t") - (4 if draft.rng.random() < 0.3 else 0)
        draft.op("Concat", [past, new], present, axis=axis)
        whole[kind] = _ordered(draft, present, layout, "bhct" if kind == "k" else "bhtc")
        if form.kv_heads < form.heads:
            whole[kind] = draft.op("Concat", [whole[kind]] * (form.heads // form.kv_heads), axis=1)
    found = _attended(built, x, whole["k"], whole["v"], "mask")
    return draft.op("Add", [found, _crossed(built, x, layer)]) if form.has_cross else found


def _ordered(draft: Draft, name: str, layout: str, wanted: str) -> str:
    perm = [layout.index(letter) for letter in wanted]
    return name if layout == wanted else draft.op("Transpose", [name], perm=perm)


def _attended(built: Decoder, x: str, keys: str, values: str, mask: str | None) -> str:
    form, draft = built.form, built.draft
    shape = draft.integers(0, 0, form.heads, form.channels)
    q = draft.op(
        "Transpose", [draft.op("Reshape", [_projected(built, x, form.heads), shape])], perm=[0, 2, 1, 3]
    )
    scores = draft.op("Mul", [draft.op("MatMul", [q, keys]), draft.floats(form.channels**-0.5)])
    scores = draft.op("Add", [scores, mask]) if mask else scores
    joined = draft.op("MatMul", [draft.op("Softmax", [scores], axis=-1), values])
    joined = draft.op("Transpose", [joined], perm=[0, 2, 1, 3])
    return draft.op("Reshape", [joined, draft.integers(0, 0, form.width)])


def _crossed(built: Decoder, x: str, layer: int) -> str:
    """Return an attention over keys and values of an encoder, which are inputs, and outputs as they are."""
    form, draft = built.form, built.draft
    ends = {}
    for kind in "kv":
        name, back = (f"{where}.{layer}.encoder.{_LONG[kind]}" for where in ("past_key_values", "present"))
        shape = ["b", form.heads, "e", form.channels]
        built.inputs[name] = built.outputs[back] = shape, form.dtype
        draft.op("Identity", [name], back)
        built.cross.append(name)
        ends[kind] = name
    return _attended(built, x, _ordered(draft, ends["k"], "bhtc", "bhct"), ends["v"], None)


def story_of(built: Decoder, rng: Random, lengths: tuple[int, ...]) -> Story:
    """Return a text that is read in parts of ``lengths``, each with the caches of those before."""
    form = built.form
    batch = 1 if form.is_fused else int(rng.choice((1, 1, 2)))  # of two texts it continues by one token alone
    cross = {name: _cross_of(form, batch, rng) for name in built.cross}
    steps, past = [], 0
    for new in lengths:
        steps.append({**_fresh(form, batch, new, past, rng), **cross})
        past += new
    return Story(built.model, steps, built.pairs, empty(built, batch))


def at_once(built: Decoder, story: Story) -> Feeds:
    """Return the whole text of a story as one step."""
    form, name = built.form, "input_ids" if built.form.has_tokens else "inputs_embeds"
    whole = np.concatenate([step[name] for step in story.steps], 1)
    cross = {key: story.steps[0][key] for key in built.cross}
    fresh = _fresh(form, len(whole), whole.shape[1], 0, np.random.default_rng(0))
    return {**fresh, **cross, name: whole, **empty(built, len(whole))}


def empty(built: Decoder, batch: int) -> Feeds:
    """Return caches without a token."""
    sizes = {"b": batch, "p": 0}
    shapes = {name: built.inputs[name] for name in built.pairs}
    return {
        name: np.zeros([sizes.get(str(size), size) for size in shape], dtype)  # type: ignore[misc]
        for name, (shape, dtype) in shapes.items()
    }


def _cross_of(form: Form, batch: int, rng: Random) -> np.ndarray:
    return rng.standard_normal((batch, form.heads, 7, form.channels)).astype(form.dtype)


def _fresh(form: Form, batch: int, new: int, past: int, rng: Random) -> Feeds:
    feed: Feeds = {}
    if form.has_tokens:
        feed["input_ids"] = rng.integers(0, form.words, (batch, new))
    else:
        feed["inputs_embeds"] = rng.standard_normal((batch, new, form.width)).astype(form.dtype)
    if form.is_fused:
        feed["attention_mask"] = np.ones((batch, past + new), np.int64)
    else:
        feed["mask"] = np.triu(np.full((new, past + new), HIDDEN, form.dtype), 1 + past)[None, None]
    return feed

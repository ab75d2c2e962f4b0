"""``--kv-cache``: which caches are stored, and what is said. Oracle: the written file, read step by step."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.helpers.cached_decoder import CACHES, ENCODER, cached_decoder, feed_of, save_samples
from tests.helpers.cached_decoder import WORDS as TABLE
from tests.helpers.decoder import WORDS, decoder
from tools import quantize
from transforms import model_io
from transforms.features.caches.coded_caches import coded_caches
from transforms.run.run_model import open_model
from transforms.run.samples import token_feed

COUNT, LENGTH = 4, 12


def written(folder: Path, model: onnx.ModelProto, *options: str) -> int:
    """Quantize a decoder with its samples; return the exit code."""
    onnx.save(model, folder / "m.onnx")
    if not (folder / "data").exists():
        save_samples(model, folder / "data")
    words = ["--input", f"{folder}/m.onnx", "--output", f"{folder}/q.onnx", "--data", f"{folder}/data"]
    return quantize.main([*words, "--no-time", *options])


def loud_decoder(keys: float, head: float = 4) -> onnx.ModelProto:
    """Return a decoder that is sure of its tokens, with keys that are so many times as large."""
    model, factors = decoder(), {"embedding": 8, "head": head, "wk": keys}
    for one in model.graph.initializer:
        if one.name in factors:
            array = onnx.numpy_helper.to_array(one) * np.float32(factors[one.name])
            one.CopyFrom(onnx.numpy_helper.from_array(array, one.name))
    return model


def token_samples(folder: Path) -> list[np.ndarray]:
    """Write samples of tokens, and return them."""
    (folder / "data").mkdir()
    texts = [np.random.default_rng(i).integers(0, WORDS, LENGTH) for i in range(COUNT)]
    onnx.save(decoder(), folder / "m.onnx")
    for i, text in enumerate(texts):
        feed = token_feed(text, open_model(folder / "m.onnx").inputs)
        np.savez(folder / "data" / f"{i}.npz", **feed)  # type: ignore[arg-type]
    return texts


def logits(path: Path, text: np.ndarray) -> np.ndarray:
    """Return the logits of a text, of which the second half is read with the caches of the first."""
    model, found = onnxruntime.InferenceSession(path), list[np.ndarray]()
    kinds = {"tensor(int8)": np.int8, "tensor(uint8)": np.uint8, "tensor(float)": np.float32}
    feed = {
        one.name: np.zeros([1, *one.shape[1:2], 0, *one.shape[3:]], kinds[one.type])
        for one in model.get_inputs()
        if one.name.startswith("past")
    }
    for start, end in ((0, LENGTH // 2), (LENGTH // 2, LENGTH)):
        feed |= {"input_ids": text[None, start:end], "attention_mask": np.ones((1, end), np.int64)}
        made = dict(zip([one.name for one in model.get_outputs()], model.run(None, feed), strict=True))
        feed |= {name.replace("present", "past"): made[name] for name in made if name != "logits"}
        found.append(made["logits"])
    return np.concatenate(found, 1).astype(np.float64)


def divergence(*pair: np.ndarray) -> float:
    """Return the KL divergence of the second's probabilities from the first's, in nats a token."""
    shifted = (one - one.max(-1, keepdims=True) for one in pair)
    wanted, found = (one - np.log(np.exp(one).sum(-1, keepdims=True)) for one in shifted)
    return float((np.exp(wanted) * (wanted - found)).sum(-1).mean())


@pytest.mark.parametrize("kind", ("int8", "int4"))
def test_the_divergence_that_is_said_is_that_of_the_file_through_its_caches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    texts = token_samples(tmp_path)
    assert written(tmp_path, loud_decoder(1), "--config", "W8", "--kv-cache", kind) == 0
    said = capsys.readouterr().out
    figure = re.search(r"Outputs: KL divergence of (\S+) nats .* read in two steps through the caches", said)
    pairs = [[logits(tmp_path / name, text) for name in ("m.onnx", "q.onnx")] for text in texts]
    wanted = np.mean([divergence(*pair) for pair in pairs])
    assert figure and np.isclose(float(figure[1]), wanted, rtol=0.1)
    assert ("2 caches" in said) and wanted > (0.005 if kind == "int4" else 1e-5)


def test_a_model_that_its_caches_ruin_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token_samples(tmp_path)
    assert written(tmp_path, loud_decoder(100, head=12), "--config", "W8", "--kv-cache", "int4") == 1
    said = capsys.readouterr().err
    assert re.search(
        r"of every attention stay in int8, .* KL divergence of \S+ nats, .*: --kv-cache int8 has more", said
    )
    assert not (tmp_path / "q.onnx").exists()


def test_a_target_holds_for_the_model_with_its_caches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Caches of 4 bits leave less than layers of 8 bits: the target that these reach is missed by any."""
    token_samples(tmp_path)
    options = "--config", "A8W8", "--min-sqnr", "30"
    assert written(tmp_path, decoder(), *options) == 0
    assert written(tmp_path, decoder(), *options, "--force", "--kv-cache", "int4") == 3
    assert re.search(
        r"target of at least 30 dB cannot be met by layers in float32: sqnr 27\.\d+ \+- \S+ dB with none",
        capsys.readouterr().err,
    )
    assert written(tmp_path, decoder(), *options, "--force", "--kv-cache", "int8") == 0
    assert "dB on 4 samples held out in 4 folds as it is written" in capsys.readouterr().out


@pytest.mark.parametrize("cross", ("passed", "If", "taken"))
@pytest.mark.parametrize("dtype", (np.float32, np.float16))
def test_caches_of_an_encoder_are_fed_back_as_they_are_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cross: str, dtype: type
) -> None:
    """Steps of one loop for both models, which asks each for the types that it takes."""
    model = cached_decoder(cross=cross, dtype=dtype)
    assert written(tmp_path, model, "--config", "W8", "--kv-cache", "int8") == 0
    said = capsys.readouterr().out
    assert "Stored in int8: 2 caches" in said and "Stored in int8: 2 caches of an encoder" in said
    assert ("Computed by another model: 'past.0.encoder.key', 'past.0" in said) == (cross != "If")
    assert "through the caches" in said and "Runs on ONNX Runtime CPU: yes" in said
    onnx.checker.check_model(tmp_path / "q.onnx", full_check=True)
    made = model_io.load(tmp_path / "q.onnx")
    assert {one.name for one in made.inputs if one.dtype == np.int8} == {*CACHES, *ENCODER}
    codes = {one.past: one for one in coded_caches(made)}
    pair = [onnxruntime.InferenceSession(tmp_path / name) for name in ("m.onnx", "q.onnx")]
    before: list[dict[str, np.ndarray] | None] = [None, None]
    errors = []
    for count in (5, 1, 2):
        tokens = np.random.default_rng(count).integers(0, TABLE, count)
        for place, session in enumerate(pair):
            caches = before[place]
            feed = feed_of(model, tokens, caches)
            if caches is not None and cross != "taken":
                feed |= {name: caches[name.replace("past", "present")] for name in ENCODER}
            feed |= {
                name: codes[name].encode(feed[name]) for name in codes if place and feed[name].dtype == dtype
            }
            names = [one.name for one in session.get_outputs()]
            before[place] = dict(zip(names, session.run(names, feed), strict=True))
        one, other = before
        assert one is not None and other is not None
        assert {name: array.shape for name, array in one.items()} == {n: a.shape for n, a in other.items()}
        assert all(array.dtype == np.int8 for name, array in other.items() if name != "logits")
        errors.append(divergence(*(found["logits"].astype("d") for found in (one, other))))
    assert max(errors) < 0.01


def test_a_cache_of_another_kind_is_refused_with_its_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = cached_decoder()
    join = next(node for node in model.graph.node if node.name == "join_key")
    last = onnx.helper.make_node("Relu", ["all_keys"], list(join.output), "kept_keys")
    join.output[:] = ["all_keys"]
    model.graph.node.insert(list(model.graph.node).index(join) + 1, last)
    assert written(tmp_path, model, "--config", "W8", "--kv-cache", "int8") == 1
    assert "'present.0.key' of Relu 'kept_keys' cannot be stored so" in capsys.readouterr().err


@pytest.mark.parametrize("config", ("A8W8", "BF16"))
@pytest.mark.parametrize("dtype", (np.float32, np.float16))
@pytest.mark.parametrize("is_named", (True, False))
def test_a_concat_that_the_scheme_quantizes_is_refused_with_a_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_named: bool, dtype: type, config: str
) -> None:
    """Whatever the names of the caches, and where nodes of float16 and of the scheme lie between."""
    model, name = cached_decoder(dtype=dtype), "present.0.key"
    save_samples(model, tmp_path / "data")
    if not is_named:
        name = "made.k"
        _rename_caches(model, tmp_path / "data")
    options = "--config", config, "--set", "arithmetic=true", "--force", "--kv-cache", "int8"
    assert written(tmp_path, model, *options) == 1
    said = capsys.readouterr().err
    assert f"the scheme quantizes what '{name}' is made of, unless with --exclude-op Concat" in said
    assert written(tmp_path, model, *options, "--exclude-op", "Concat") == 0
    capsys.readouterr()
    assert written(tmp_path, model, *options[:-1], "int4") == 1
    assert "only GroupQueryAttention takes caches in int4" in capsys.readouterr().err


def test_the_way_out_names_the_operator_of_the_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token_samples(tmp_path)
    options = "--config", "BF16", "--kv-cache", "int4"
    assert written(tmp_path, decoder(), *options) == 1
    assert "unless with --exclude-op GroupQueryAttention" in capsys.readouterr().err
    assert written(tmp_path, decoder(), *options, "--exclude-op", "GroupQueryAttention") == 0


def _rename_caches(model: onnx.ModelProto, samples: Path) -> None:
    """Give caches names that tell nothing, in a model and its samples."""
    new = {f"{old}.0.{kind}": f"{end}.{kind[0]}" for old, end in (("past", "fed"), ("present", "made"))
           for kind in ("key", "value")}  # fmt: skip
    for end in (*model.graph.input, *model.graph.output):
        end.name = new.get(end.name, end.name)
    for node in model.graph.node:
        node.input[:] = [new.get(name, name) for name in node.input]
        node.output[:] = [new.get(name, name) for name in node.output]
    for path in samples.iterdir():
        with np.load(path) as arrays:
            feed = {new.get(name, name): arrays[name] for name in arrays}
        np.savez(path, **feed)  # type: ignore[arg-type]


def test_caches_of_an_encoder_alone_are_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = cached_decoder(cross="passed")
    for name in ("key", "value"):  # the decoder reads whole texts alone
        join = next(node for node in model.graph.node if node.name == f"join_{name}")
        join.op_type, join.input[:] = "Identity", join.input[1:]
        del join.attribute[:]
    kept = [one for one in model.graph.input if not one.name.startswith("past.0.key")]
    kept = [one for one in kept if not one.name.startswith("past.0.value")]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    assert written(tmp_path, model, "--config", "W8", "--kv-cache", "int8") == 0
    assert "Stored in int8: 2 caches of an encoder" in capsys.readouterr().out
    made = onnxruntime.InferenceSession(tmp_path / "q.onnx")
    assert {one.name for one in made.get_inputs() if one.type == "tensor(int8)"} == {*ENCODER}

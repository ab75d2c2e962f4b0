"""Samples of a decoder that an encoder completes. Oracle: the same samples, completed by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tools import auto_mixed_precision, convert_fp32_to_bf16, evaluate, finetune, infer, quantize, report

BANDS, FRAMES, SIZE, TOKENS, COUNT = 8, 12, 16, 40, 6
ENCODER = f"""<ir_version: 8, opset_import: ["": 17]>
main (float[N,{BANDS},T] input_features, float[N,T] heard) => (float[N,T,{SIZE}] encoder_hidden_states) {{
    turned = Transpose <perm = [0, 2, 1]> (input_features)  a = MatMul (turned, w)  b = Tanh (a)
    encoder_hidden_states = MatMul (b, u)
}}"""
DECODER = f"""<ir_version: 8, opset_import: ["": 17]>
main (int64[N,S] input_ids, float[N,T,{SIZE}] encoder_hidden_states, float[N,T] encoder_mask,
      float[N,P,{SIZE}] past_key)
=> (float[N,S,{TOKENS}] logits, float[N,Q,{SIZE}] present_key) <int64[1] one = {{1}}> {{
    e = Gather (table, input_ids)  key = MatMul (e, k)  present_key = Concat <axis = 1> (past_key, key)
    query = MatMul (e, q)  keys = MatMul (encoder_hidden_states, c)
    heard = Transpose <perm = [0, 2, 1]> (keys)  scores = MatMul (query, heard)
    mask = Unsqueeze (encoder_mask, one)  masked = Add (scores, mask)  shares = Softmax (masked)
    read = MatMul (shares, encoder_hidden_states)  mean = ReduceMean <axes = [1]> (present_key)
    sum = Add (e, read)  all = Add (sum, mean)  bent = Tanh (all)  logits = MatMul (bent, head)
}}"""
SIZES = {"w": (BANDS, SIZE), "u": (SIZE, SIZE), "table": (TOKENS, SIZE), "head": (SIZE, TOKENS)}
SIZES |= dict.fromkeys("kqc", (SIZE, SIZE))


def write(text: str, path: Path) -> None:
    model, random = onnx.parser.parse_model(text), np.random.default_rng(len(text))
    read = {name for node in model.graph.node for name in node.input}
    for name in sorted(read & SIZES.keys()):
        weight = random.standard_normal(SIZES[name]).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    onnx.save(model, path)


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """Both models, samples of both in ``data``, and whole ones of the decoder in ``whole``."""
    write(ENCODER, tmp_path / "encoder.onnx")
    write(DECODER, tmp_path / "decoder.onnx")
    for folder in ("whole", "data", "data/encoder", "data/decoder"):
        (tmp_path / folder).mkdir()
    session = onnxruntime.InferenceSession(str(tmp_path / "encoder.onnx"))
    random = np.random.default_rng(3)
    for i in range(COUNT):
        mel = random.standard_normal((1, BANDS, FRAMES)).astype(np.float32)
        heard = np.where(np.arange(FRAMES) < FRAMES - i, 0, -1e4).astype(np.float32)[None]
        feed = {"input_features": mel, "heard": heard}
        np.savez(tmp_path / "data" / "encoder" / f"{i}.npz", **feed)
        own = {"input_ids": random.integers(0, TOKENS, (1, 5 + i))}
        own["past_key"] = random.standard_normal((1, 2, SIZE)).astype(np.float32)
        for folder in ("data", "data/decoder"):
            np.savez(tmp_path / folder / f"{i}.npz", **own)
        (hidden,) = session.run(None, feed)
        whole = {**own, "encoder_hidden_states": hidden, "encoder_mask": heard}
        np.savez(tmp_path / "whole" / f"{i}.npz", **whole)
    return tmp_path


FED = ("--data", "{0}/data", "--feeds-from", "{0}/encoder.onnx", "--feed", "heard=encoder_mask")
WHOLE = ("--data", "{0}/whole")


def run(tool: object, scene: Path, *arguments: str) -> None:
    words = [word.format(scene) for word in arguments]
    assert tool.main(words) == 0, words  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "command",
    [
        (quantize, "--input", "{0}/decoder.onnx", "--config", "A8W8"),
        (auto_mixed_precision, "--input", "{0}/decoder.onnx", "--config", "BF16_MIXED_BFP16"),
        (convert_fp32_to_bf16, "--input", "{0}/decoder.onnx", "--min-sqnr", "30"),
        (finetune, "--float", "{0}/decoder.onnx", "--quantized", "{0}/q.onnx"),
    ],
)
def test_a_tool_makes_the_same_of_both(command: tuple, scene: Path) -> None:
    tool, *arguments = command
    if tool is finetune:
        run(quantize, scene, "--input", "{0}/decoder.onnx", "--config", "W8", "--output", "{0}/q.onnx")
    run(tool, scene, *arguments, *FED, "--output", "{0}/a.onnx")
    run(tool, scene, *arguments, *WHOLE, "--output", "{0}/b.onnx")
    assert (scene / "a.onnx").read_bytes() == (scene / "b.onnx").read_bytes()


def test_results_are_the_same(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, samples in (("a", FED), ("b", WHOLE)):
        run(infer, scene, "--input", "{0}/decoder.onnx", *samples, "--output", f"{{0}}/{name}")
    said = capsys.readouterr().out
    assert "on 6 samples, fed: encoder_hidden_states, heard to encoder_mask\n" in said
    folders = ("--baseline_results_folder", "{0}/a", "--quantized_results_folder", "{0}/b")
    run(evaluate, scene, *folders)
    assert f"Files: {2 * COUNT}, identical: {2 * COUNT}\n" in capsys.readouterr().out


def test_a_report_repeats_the_options(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = ("--config", "A8W8", *FED, "--output", "{0}/q.onnx")
    run(quantize, scene, "--input", "{0}/decoder.onnx", *made)
    pair = ("--float", "{0}/decoder.onnx", "--quantized", "{0}/q.onnx")
    run(report, scene, *pair, *FED, "--output", "{0}/r.html")
    said = capsys.readouterr().out
    commands = [line for line in said.splitlines() if "--data" in line]
    assert "on 6 samples" in said and commands
    assert all(" ".join(FED).format(scene) in line for line in commands)


def test_a_folder_of_both_models(scene: Path) -> None:
    """Its encoder is fed by nothing; the samples of its decoder lie beside those of the encoder."""
    (scene / "models").mkdir()
    for name in ("encoder.onnx", "decoder.onnx"):
        (scene / name).rename(scene / "models" / name)
    fed = ("--feeds-from", "{0}/models/encoder.onnx", "--feed", "heard=encoder_mask")
    made = ("--config", "A8W8", "--data", "{0}/data", *fed, "--output", "{0}/made")
    run(quantize, scene, "--input", "{0}/models", *made)
    alone = ("--config", "A8W8", *WHOLE, "--output", "{0}/b.onnx")
    run(quantize, scene, "--input", "{0}/models/decoder.onnx", *alone)
    assert (scene / "made" / "decoder.onnx").read_bytes() == (scene / "b.onnx").read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (FED[:4], "input 'encoder_mask'"),
        ((*FED[:4], "--feed", "hear=encoder_mask"), "output of the encoder 'hear' is unknown"),
        ((*FED[:4], "--feed", "heard=mask"), "input 'mask' is unknown"),
        ((*FED[:3], "{0}/decoder.onnx"), "no input of the model, "),
        (("--data", "{0}/data/encoder", *FED[2:]), "'heard' is not an input of the model"),
    ],
)
def test_what_does_not_fit(
    options: tuple[str, ...], message: str, scene: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--input", "{0}/decoder.onnx", *options, "--output", "{0}/a")
    assert infer.main([word.format(scene) for word in words]) == 1
    said = capsys.readouterr().err
    assert message in said and said.count("error:") == 1


def test_samples_that_the_encoder_lacks(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word.format(scene) for word in ("--input", "{0}/decoder.onnx", *FED, "--output", "{0}/a")]
    (scene / "data" / "encoder" / "3.npz").unlink()
    assert infer.main(words) == 1
    assert "holds no sample '3' for the encoder" in capsys.readouterr().err
    (scene / "data" / "encoder").rename(scene / "elsewhere")
    assert infer.main(words) == 1
    assert "there are no samples of '" in capsys.readouterr().err

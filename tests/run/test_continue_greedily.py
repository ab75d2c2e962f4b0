"""Texts that models continue by themselves. Oracle: the same sums over the whole text in NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tools import evaluate, infer
from transforms import model_io
from transforms.run.continue_greedily import GreedyWriter
from transforms.run.run_model import open_model

TOKENS, SIZE, COUNT = 23, 6, 9
RANDOM = np.random.default_rng(11)
TABLE = RANDOM.standard_normal((TOKENS, SIZE)).astype(np.float32)
HEAD = RANDOM.standard_normal((SIZE, TOKENS)).astype(np.float32)
FADE = np.float32(0.1)
"""By which a token counts for its position and for each that the mask shows: both change what comes next."""

BODY = """
    e = Gather (table, input_ids)  present_key = CACHE
    m = Cast <to = 1> (attention_mask)  total = ReduceSum <keepdims = 1> (m, one)
    p = Cast <to = 1> (position_ids)  last = ReduceMax <axes = [1], keepdims = 1> (p)
    seen = ReduceSum <keepdims = 1> (present_key, one)  sum = Add (total, last)  part = Mul (sum, fade)
    three = Unsqueeze (part, two)  shifted = Add (seen, three)  bent = Sin (shifted)
    logits = MatMul (bent, head)
}"""
CACHED = f"""<ir_version: 8, opset_import: ["": 17]>
main (int64[N,S] input_ids, int64[N,T] attention_mask, int64[N,S] position_ids, float[N,P,{SIZE}] past_key)
=> (float[N,1,{TOKENS}] logits, float[N,T,{SIZE}] present_key)
<int64[1] one = {{1}}, int64[1] two = {{2}}, float fade = {{{FADE}}}> {{
""" + BODY.replace("CACHE", "Concat <axis = 1> (past_key, e)")
WHOLE = f"""<ir_version: 8, opset_import: ["": 17]>
main (int64[N,S] input_ids, int64[N,T] attention_mask, int64[N,S] position_ids)
=> (float[N,1,{TOKENS}] logits)
<int64[1] one = {{1}}, int64[1] two = {{2}}, float fade = {{{FADE}}}> {{
""" + BODY.replace("CACHE", "Identity (e)")
TEXTS = RANDOM.integers(0, TOKENS, (2, 5))


def model(text: str, head: np.ndarray = HEAD) -> onnx.ModelProto:
    found = onnx.parser.parse_model(text)
    found.graph.initializer.append(onnx.numpy_helper.from_array(TABLE, "table"))
    found.graph.initializer.append(onnx.numpy_helper.from_array(head, "head"))
    return found


def feed(text: str, ids: np.ndarray = TEXTS) -> dict[str, np.ndarray]:
    found = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    found["position_ids"] = np.broadcast_to(np.arange(ids.shape[1]), ids.shape).copy()
    return found | ({"past_key": np.zeros((len(ids), 0, SIZE), np.float32)} if text == CACHED else {})


def continued(ids: np.ndarray, count: int) -> np.ndarray:
    """Return the tokens that follow by the sums over the whole text."""
    for _ in range(count):
        length = ids.shape[1]
        bent = np.sin(TABLE[ids].sum(1) + FADE * (length + length - 1))
        ids = np.concatenate([ids, (bent @ HEAD).argmax(-1)[:, None]], 1)
    return ids[:, -count:]


@pytest.mark.parametrize("text", (CACHED, WHOLE))
def test_tokens_follow_from_the_whole_text(text: str, tmp_path: Path) -> None:
    onnx.save(model(text), tmp_path / "m.onnx")
    writer = GreedyWriter(open_model(tmp_path / "m.onnx"), model_io.load(tmp_path / "m.onnx"))
    found = writer.write(feed(text), COUNT, "s")
    assert np.array_equal(found, continued(TEXTS, COUNT)) and len(np.unique(found)) > 3


def test_a_model_of_texts_of_one_length_is_refused_in_words(tmp_path: Path) -> None:
    fixed = WHOLE.replace("int64[N,S] input_ids", "int64[2,5] input_ids")
    onnx.save(model(fixed), tmp_path / "m.onnx")
    writer = GreedyWriter(open_model(tmp_path / "m.onnx"), model_io.load(tmp_path / "m.onnx"))
    assert writer.write(feed(WHOLE), 1, "s").shape == (2, 1)
    with pytest.raises(ValueError, match=r"sample 's, token 1', input 'input_ids': shape .2, 6. ins"):
        writer.write(feed(WHOLE), 2, "s")


def test_the_tools_save_and_compare_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = HEAD + np.random.default_rng(1).standard_normal(HEAD.shape).astype(np.float32) / 4
    onnx.save(model(CACHED), tmp_path / "m.onnx")
    onnx.save(model(CACHED, other), tmp_path / "q.onnx")
    (tmp_path / "data").mkdir()
    for i, ids in enumerate(TEXTS):
        np.savez(tmp_path / "data" / f"{i}.npz", **feed(CACHED, ids[None]))
    for name in "mq":
        words = ["--input", f"{tmp_path}/{name}.onnx", "--data", f"{tmp_path}/data"]
        assert infer.main([*words, "--output", f"{tmp_path}/{name}", "--generate", str(COUNT)]) == 0
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["generated_tokens"]  # and no outputs
    texts = [[np.load(tmp_path / name / "generated_tokens" / f"{i}.npy")[0] for i in (0, 1)] for name in "mq"]
    assert np.array_equal(texts[0], continued(TEXTS, COUNT))
    same = np.array(texts[0]) == np.array(texts[1])
    first = np.mean([COUNT if row.all() else row.argmin() for row in same])
    assert 0 < same.mean() < 1
    folders = ["--baseline_results_folder", f"{tmp_path}/m", "--quantized_results_folder", f"{tmp_path}/q"]
    capsys.readouterr()
    assert evaluate.main([*folders, "--json", f"{tmp_path}/f.json"]) == 0
    said = capsys.readouterr().out
    assert (
        f"Greedy agreement: {same.mean():.1%} of {COUNT} tokens, {first:.1f} before the first other" in said
    )
    assert '"greedy": {' in (tmp_path / "f.json").read_text()
    assert evaluate.main([*folders, "--min-greedy", f"{same.mean() - 0.01}"]) == 0
    assert evaluate.main([*folders, "--min-greedy", f"{same.mean() + 0.01}"]) == 3
    assert "--min-greedy " in capsys.readouterr().err

"""Figures of language models. Oracle: the definitions, one token at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tools import evaluate
from transforms.compare.compare_results import pair_files
from transforms.compare.language import compare_logits

RANDOM = np.random.default_rng(3)
TEXTS = [RANDOM.integers(0, 11, (1, length)) for length in (70, 5)]


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Logits of two models in folders, one with the output's name, and the texts."""
    for name in ("one/logits", "other/logits", "texts"):
        (tmp_path / name).mkdir(parents=True)
    for i, ids in enumerate(TEXTS):
        logits = RANDOM.standard_normal((*ids.shape, 11)).astype(np.float32)
        np.save(tmp_path / "one" / "logits" / f"{i}.npy", logits)
        np.save(tmp_path / "other" / "logits" / f"{i}.npy", logits + RANDOM.standard_normal(logits.shape))
        np.savez(tmp_path / "texts" / f"{i}.npz", input_ids=ids, attention_mask=np.ones_like(ids))
    return tmp_path / "one", tmp_path / "other", tmp_path / "texts"


def probabilities(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits.astype(np.float64))
    return np.asarray(powers / powers.sum())


def test_figures_are_those_of_their_definitions(folders: tuple[Path, Path, Path]) -> None:
    divergence, same, losses = [], [], []
    for i, ids in enumerate(TEXTS):
        pair = [np.load(folder / "logits" / f"{i}.npy")[0] for folder in folders[:2]]
        for place in range(ids.shape[1]):
            p, q = (probabilities(one[place]) for one in pair)
            divergence.append(float((p * np.log(p / q)).sum()))
            same.append(p.argmax() == q.argmax())
            if place + 1 < ids.shape[1]:
                losses.append([-np.log(one[ids[0, place + 1]]) for one in (p, q)])
    found = compare_logits(pair_files(*folders[:2]), "logits", folders[2])
    assert found.tokens == 75 and found.kl == pytest.approx(np.mean(divergence))
    assert found.same == pytest.approx(np.mean(same)) and 0 < found.same < 1
    assert found.perplexity == pytest.approx(np.exp(np.mean(losses, 0)))


def test_texts_are_rows_of_one_file(tmp_path: Path) -> None:
    """The results are numbered, as ``tools.infer`` names those of such a file."""
    texts = RANDOM.integers(0, 11, (3, 9))
    for folder in ("one/logits", "other/logits", "texts"):
        (tmp_path / folder).mkdir(parents=True)
    for i, ids in enumerate(texts):
        np.save(tmp_path / "texts" / f"{i:06}.npy", ids[None])
        for folder in ("one", "other"):
            np.save(tmp_path / folder / "logits" / f"{i:06}.npy", RANDOM.standard_normal((1, 9, 11)))
    np.save(tmp_path / "texts.npy", texts)
    pairs = pair_files(tmp_path / "one", tmp_path / "other")
    found = [compare_logits(pairs, "logits", tmp_path / name) for name in ("texts.npy", "texts")]
    assert found[0].perplexity and found[0] == found[1]


def test_the_tool_says_them(folders: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    one, other, texts = map(str, folders)
    pair = ["--baseline_results_folder", one, "--quantized_results_folder", other]
    assert evaluate.main([*pair, "--logits", "logits", "--tokens", texts]) == 0
    out = capsys.readouterr().out
    assert (
        " nats per token, over 75 tokens\n" in out and "Same first choice: " in out and "Perplexity: " in out
    )
    assert evaluate.main([*pair, "--logits", "logits"]) == 0
    assert "Perplexity" not in capsys.readouterr().out
    assert evaluate.main([*pair, "--logits", "logit"]) == 1
    assert "no results of an output 'logit', there are: 'logits'" in capsys.readouterr().err
    (folders[2] / "1.npz").unlink()
    assert evaluate.main([*pair, "--logits", "logits", "--tokens", texts]) == 1
    assert "has no tokens '1.npz' or '1.npy'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "figure"),
    (("--max-kl", "KL divergence: "), ("--min-same", "choice: "), ("--max-perplexity", " -> ")),
)
def test_a_limit_that_is_missed_is_an_error(
    folders: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str], option: str, figure: str
) -> None:
    one, other, texts = map(str, folders)
    pair = ["--baseline_results_folder", one, "--quantized_results_folder", other, "--logits", "logits"]
    assert evaluate.main([*pair, "--tokens", texts]) == 0
    value = capsys.readouterr().out.split(figure)[1].split()[0]
    number = float(value.rstrip("%")) / (100 if "%" in value else 1)
    codes = [evaluate.main([*pair, "--tokens", texts, option, f"{number * x}"]) for x in (0.98, 1.02)]
    assert codes == ([0, 3] if option == "--min-same" else [3, 0])
    assert f"error: {option} " in capsys.readouterr().err


@pytest.mark.parametrize("ids", (np.zeros((1, 4), np.int64), np.full((1, 5), 11), np.zeros((1, 5))))
def test_tokens_that_do_not_fit(folders: tuple[Path, Path, Path], ids: np.ndarray) -> None:
    np.savez(folders[2] / "1.npz", input_ids=ids)
    with pytest.raises(ValueError, match=r"1\.npz' has tokens .*, for logits \[5, 11\]"):
        compare_logits(pair_files(*folders[:2]), "logits", folders[2])

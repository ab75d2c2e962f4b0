"""Which models are run through a view. Oracle: what was stored, and what a float model is fed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx

from tests.helpers import plans
from tests.helpers.decoder import HEADS, WORDS, decoder
from transforms import features, model_io
from transforms.features.caches.cache_view import CacheView
from transforms.pipelines.first_run import FirstRunOptions, first_run
from transforms.pipelines.source import Source
from transforms.quantize_caches import quantize_caches
from transforms.run.samples import token_feed
from transforms.runtime.inputs import model_inputs


def test_only_a_model_with_caches_in_few_bits_has_a_view() -> None:
    graph = model_io.load(decoder())
    assert features.view_of(graph) is None
    quantize_caches(graph, {"present.0.key": np.full((HEADS, 32), 0.1, np.float32)})
    view = features.view_of(graph)
    assert isinstance(view, CacheView) and [one.past for one in view.caches] == ["past.0.key"]
    pixels = plans.model("(uint8[1, 4] x) => (float[1, 4] y) { y = Cast <to = 1> (x) }", {})
    assert features.view_of(model_io.load(pixels)) is None


def test_a_feed_of_codes_stays_as_it_is() -> None:
    graph = model_io.load(decoder())
    feed = token_feed(np.arange(WORDS)[:4], model_inputs(graph))
    quantize_caches(graph, {"present.0.key": np.full((HEADS, 32), 0.1, np.float32)})
    view = features.view_of(graph)
    assert view is not None
    codes = view.fed({**feed, "past.0.key": np.full((1, HEADS, 3, 32), 0.52, np.float32)})
    assert codes["past.0.key"].dtype == np.int8 and (codes["past.0.key"] == 5).all()
    assert view.fed(codes)["past.0.key"] is codes["past.0.key"]


def test_the_first_run_feeds_codes(tmp_path: Path) -> None:
    onnx.save(decoder(), tmp_path / "m.onnx")
    graph = model_io.load(decoder())
    scale = np.full((HEADS, 32), 0.1, np.float32)
    quantize_caches(graph, {"present.0.key": scale, "present.0.value": scale})
    inputs = model_inputs(model_io.load(decoder()))
    feed = token_feed(np.arange(4), inputs)
    feed |= {f"past.0.{name}": np.full((1, HEADS, 3, 32), 0.52, np.float32) for name in ("key", "value")}
    feed["attention_mask"] = np.ones((1, 7), feed["attention_mask"].dtype)
    found = first_run(graph, FirstRunOptions(Source(tmp_path / "m.onnx"), lambda _: [("0", feed)]))
    assert found.why_not is None and found.feeds is not None and (found.feeds[0]["past.0.key"] == 5).all()


def test_the_folder_is_imported_with_its_option_alone() -> None:
    code = (
        "import sys; from transforms import features; from transforms.pipelines.options import Options\n"
        "caches = lambda: [one for one in sys.modules if 'features.caches' in one]\n"
        "assert not features.asked_for(Options()) and not caches()\n"
        "(feature,) = features.asked_for(Options(kv_cache='int8'))\n"
        "assert feature.noun == 'a cache' and caches()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

"""Warn if images are scaled differently from those of the model's training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.features.images.input_fit import Feeds, FirstLayers, better, find_fit
from transforms.files.spelling import spelled
from transforms.graph.typed import Graph
from transforms.run.image_options import SCALINGS, ImageOptions
from transforms.runtime.inputs import ModelInput, model_inputs
from transforms.runtime.session import RunOptions

_LOOKED_AT = 8
"""Samples to examine."""

_CHANNELS = (1, 3, 4)
_RAW = "pixel"
_RANGES = {"NominalRange_0_255": _RAW, "Normalized_0_1": "zero-one", "Normalized_1_1": "mobilenet"}
"""Values of Image.NominalPixelRange in the metadata of a model, as ONNX defines them."""

NamedFeeds = Iterable[tuple[str, Feed]]


def scale_warning(
    graph: gs.Graph,
    read: Callable[[ImageOptions], NamedFeeds],
    images: ImageOptions,
    run: RunOptions | None = None,
) -> Iterator[str]:
    """Yield a warning if the model shows traces of images with another scale.

    ``read``: reads images with given options.
    """
    wanted = _image_input(graph)
    if wanted is None:
        return
    samples: Feeds = [feed for _, feed in islice(read(images), _LOOKED_AT)]
    alternatives: dict[str, ImageOptions] = {_RAW: replace(images, mean=(0.0,), std=(1.0,), transform=None)}
    for name, (mean, std) in SCALINGS.items():
        if len(mean) in (1, samples[0][wanted.name].shape[_channel_axis(wanted)]):
            alternatives[name] = replace(images, mean=mean, std=std, transform=None)
    declared = _RANGES.get(_metadata(graph).get("Image.NominalPixelRange", ""), "")
    if declared and images.transform is None and alternatives[declared] != images:
        ways = _advice(declared, images, alternatives)
        yield f"Warning: images do not fit the model: its metadata declare another range; {ways}"
        return
    feeds = {name: partial(_read, read, options) for name, options in alternatives.items()}
    fit = find_fit(graph, wanted.name)
    if fit is None:
        return
    best = better(FirstLayers(graph, fit, run), samples, feeds)
    if best is None:
        return
    if best:
        ways = _advice(best, images, alternatives)
    else:
        ways = "no usual scale of pixels fits: " + spelled("give the {mean} and {std} used in training")
    yield f"Warning: images do not fit the model: {fit.cause}; {ways}"


def _advice(name: str, images: ImageOptions, others: Mapping[str, ImageOptions]) -> str:
    if name != _RAW:
        mean, std = (",".join(f"{x:g}" for x in numbers) for numbers in SCALINGS[name])
        return "try " + spelled(f"{{preprocess:{name}}} ({{mean:{mean}}} {{std:{std}}})")
    given = "{preprocess}" if images.transform is not None else "{mean} and {std}"
    return f"try pixels of 0 to 255, without {spelled(given)}"


def _image_input(graph: gs.Graph) -> ModelInput | None:
    """Return the first input that may be an image: floats, rank 4, with 1, 3 or 4 channels, or None."""
    for one in model_inputs(graph):
        if one.dtype.kind == "f" and len(one.shape) == 4 and {one.shape[1], one.shape[3]} & {*_CHANNELS}:
            return one
    return None


def _channel_axis(wanted: ModelInput) -> int:
    return 1 if wanted.shape[1] in _CHANNELS else 3


def _metadata(graph: gs.Graph) -> Mapping[str, str]:
    return graph.info.metadata if isinstance(graph, Graph) else {}


def _read(read: Callable[[ImageOptions], NamedFeeds], options: ImageOptions) -> Feeds:
    return [feed for _, feed in islice(read(options), _LOOKED_AT)]

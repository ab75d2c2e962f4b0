"""Samples that a model is calibrated on, and how they are read and run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_graphsurgeon as gs

from transforms.run.feeds import Feeds, Source, open_feeds
from transforms.run.fitted import Fitting
from transforms.run.image_options import ImageOptions
from transforms.runtime.inputs import ModelInput, model_inputs
from transforms.runtime.session import RunOptions

if TYPE_CHECKING:
    from transforms.run.workers import Workers


@dataclass(frozen=True)
class CalibrationData:
    """The source of ranges: a folder, a reader or any iterable of feeds, and how to read it.

    ``limit``: the most samples. ``images``: how images become inputs. ``cache``: a file of statistics.
    ``run``: how the float model runs. ``workers`` run it, if given. ``memory_limit``: bytes of tensors of a
    sample; more of them at once is an error. ``fitting``: converts arrays in memory to the type and rank of
    inputs. ``decides``: whether the data resemble those of the application, so that settings can be compared
    on them.
    """

    source: Source | Feeds
    images: ImageOptions | None = None
    limit: int | None = None
    cache: Path | None = None
    run: RunOptions | None = None
    workers: Workers | None = None
    memory_limit: int | None = None
    decides: bool = True
    fitting: Fitting = field(default_factory=Fitting, compare=False)

    def feeds(self, graph: gs.Graph) -> Feeds:
        """Return the feeds of the source for the inputs of a graph; raises what ``open_feeds`` does."""
        return self.source if isinstance(self.source, Feeds) else self.feeds_of(model_inputs(graph))

    def feeds_of(self, inputs: Sequence[ModelInput]) -> Feeds:
        """Return the same for the inputs of a model in a session; errors name other inputs as well."""
        if isinstance(self.source, Feeds):
            return self.source
        return open_feeds(self.source, inputs, images=self.images, limit=self.limit, fitting=self.fitting)

    def repeatable(self, graph: gs.Graph) -> CalibrationData:
        """Return data that can be iterated several times."""
        feeds = self.feeds(graph)
        if not feeds.is_repeatable:
            feeds = open_feeds([feed for _, feed in feeds], model_inputs(graph))
        return replace(self, source=feeds, images=None, limit=None)


class MissingDataError(ValueError):
    """Ranges are needed, and data to measure them are missing."""

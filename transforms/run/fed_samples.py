"""Samples of a decoder: what an encoder makes of its own samples is fed beside what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ops.legal_names import refuse_unknown
from transforms.run.fitted import Fitting
from transforms.run.image_options import ImageOptions
from transforms.run.samples import Samples
from transforms.runtime.inputs import ModelInput, check_feed
from transforms.runtime.session import OpenModel


def fed_inputs(
    inputs: Sequence[ModelInput], encoder: OpenModel, given: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return which tensor of an encoder each input of a model takes that takes one.

    Those are outputs of the same name, and what is ``given``: inputs of the model by outputs of the encoder,
    or by its own inputs, such as a mask. Raises ValueError for an unknown name.
    """
    names = {one.name for one in inputs}
    found = {name: name for name in encoder.outputs if name in names}
    for made, fed in (given or {}).items():
        known = [*encoder.outputs, *(one.name for one in encoder.inputs)]
        refuse_unknown(made, known, "output of the encoder")
        refuse_unknown(fed, names, "input")
        found[fed] = made
    return found


class FedSamples:
    """The samples of a folder with the outputs of an encoder, which runs on its samples of the same names."""

    def __init__(
        self,
        inputs: Sequence[ModelInput],
        folder: Path,
        encoder: OpenModel,
        encoder_folder: Path,
        fed: Mapping[str, str],
        images: ImageOptions | None = None,
        limit: int | None = None,
    ) -> None:
        """List both folders, at most ``limit`` samples of the first; ``images`` are those of the encoder.

        ``fed``: as :func:`fed_inputs` returns it; the samples have no arrays for these inputs. Raises as
        :class:`transforms.run.samples.Samples` does, and ValueError for a sample that the encoder lacks.
        """
        self._inputs, self._encoder, self._fed = inputs, encoder, fed
        own = [one for one in inputs if one.name not in fed]
        self._own = Samples(folder, own, limit=limit, fitting=Fitting())
        self._others = Samples(encoder_folder, encoder.inputs, images, fitting=Fitting())
        missing = [name for name in self._own.names if name not in set(self._others.names)]
        if missing:
            raise ValueError(f"folder '{encoder_folder}' holds no sample '{missing[0]}' for the encoder")

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._own)

    def __iter__(self) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Yield name and feed of each; ValueError when one does not fit the model."""
        for name, feed in self._own:
            given = self._others.feed(name)
            made = {**given, **self._encoder.run(given)}
            full = {**feed, **{fed: made[tensor] for fed, tensor in self._fed.items()}}
            check_feed(self._inputs, full, name)
            yield name, full

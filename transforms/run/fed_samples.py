"""Samples of a decoder completed by the outputs of an encoder on its own samples."""

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
    """Return the encoder tensor that feeds each input of a model, where there is one.

    These are outputs of the same name, and those ``given``: inputs of the model by output of the encoder, or
    by its input, such as a mask. Raises ValueError for an unknown name.
    """
    names = {tensor.name for tensor in inputs}
    fed_by = {name: name for name in encoder.outputs if name in names}
    for source, fed in (given or {}).items():
        names_of_encoder = [*encoder.outputs, *(tensor.name for tensor in encoder.inputs)]
        refuse_unknown(source, names_of_encoder, "output of the encoder")
        refuse_unknown(fed, names, "input")
        fed_by[fed] = source
    return fed_by


class FedSamples:
    """The samples of a folder with the outputs of an encoder, run on its samples with the same names."""

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
        unfed = [tensor for tensor in inputs if tensor.name not in fed]
        self._samples = Samples(folder, unfed, limit=limit, fitting=Fitting())
        self._encoder_samples = Samples(encoder_folder, encoder.inputs, images, fitting=Fitting())
        missing = [name for name in self._samples.names if name not in set(self._encoder_samples.names)]
        if missing:
            raise ValueError(f"folder '{encoder_folder}' holds no sample '{missing[0]}' for the encoder")

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._samples)

    def __iter__(self) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Yield name and feed of each sample; ValueError when one does not fit the model."""
        for name, feed in self._samples:
            encoder_feed = self._encoder_samples.feed(name)
            encoded = {**encoder_feed, **self._encoder.run(encoder_feed)}
            full = {**feed, **{fed: encoded[tensor] for fed, tensor in self._fed.items()}}
            check_feed(self._inputs, full, name)
            yield name, full

"""Write the test images of the example as samples for the tools, one file each: ``0.npy`` to ``359.npy``.

``python -m tests.examples.write_samples [FOLDER]``; into ``photos`` as pictures, in a folder for each digit,
whose pixels from 0 to 255 the model takes as 0 to 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

IMAGES = Path(__file__).parent / "digits_test_images.npy"
LABELS = Path(__file__).parent / "digits_test_labels.npy"
PHOTOS = "photos"


def write(folder: Path) -> None:
    """Write the samples into a folder, over those that it has."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, image in enumerate(np.load(IMAGES)):
        np.save(folder / f"{i}.npy", image[None])


def write_photos(folder: Path) -> None:
    """Write the images into folders of classes, over those that they have."""
    from PIL import Image

    for i, (image, label) in enumerate(zip(np.load(IMAGES), np.load(LABELS), strict=True)):
        place = folder / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((255 * image[0]).round().astype(np.uint8)).save(place / f"{i}.png")


if __name__ == "__main__":
    target = Path(*sys.argv[1:2] or ["digits"])
    (write_photos if target.name == PHOTOS else write)(target)

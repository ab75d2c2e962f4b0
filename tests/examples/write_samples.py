"""Write the test images of the example as samples for the tools, one file each: ``0.npy`` to ``359.npy``.

``python -m tests.examples.write_samples [FOLDER]``
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

IMAGES = Path(__file__).parent / "digits_test_images.npy"
LABELS = Path(__file__).parent / "digits_test_labels.npy"


def write(folder: Path) -> None:
    """Write the samples into a folder, over those that it has."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, image in enumerate(np.load(IMAGES)):
        np.save(folder / f"{i}.npy", image[None])


if __name__ == "__main__":
    write(Path(*sys.argv[1:2] or ["digits"]))

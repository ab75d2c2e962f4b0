"""Write the 64 pictures for calibration as PNG files: ``python -m examples.digits.write_photos [FOLDER]``.

Their pixels from 0 to 255 are numbers from 0 to 1 for the model; the folder is ``photos`` unless another is
named.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

CALIBRATION = Path(__file__).parent / "calibration.npz"


def write(folder: Path) -> None:
    """Write the pictures into a folder, over those that it has."""
    folder.mkdir(parents=True, exist_ok=True)
    with np.load(CALIBRATION) as arrays:
        for i, image in enumerate(arrays["images"]):
            Image.fromarray((255 * image[0]).round().astype(np.uint8)).save(folder / f"{i}.png")


if __name__ == "__main__":
    write(Path(*sys.argv[1:2] or ["photos"]))

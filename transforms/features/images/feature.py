"""The feature of images."""

from __future__ import annotations

from transforms.features.hooks import Feature, SampleFiles
from transforms.features.images.image_check import scale_warning
from transforms.features.images.image_inputs import images_line, read_image

FEATURE = Feature(noun="an image", files=SampleFiles(read_image, images_line, scale_warning))

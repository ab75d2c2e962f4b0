"""The rewrite :func:`transforms.channels.equalize_layers.equalize_layers`."""

from transforms.channels.equalize_layers import equalize_layers as equalize_layers

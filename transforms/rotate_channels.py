"""The rewrite :func:`transforms.channels.rotate_channels.rotate_channels`."""

from transforms.channels.rotate_channels import rotate_channels as rotate_channels

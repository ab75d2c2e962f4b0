"""The rewrite :func:`transforms.channels.scale_channels.scale_channels`."""

from transforms.channels.scale_channels import scale_channels as scale_channels

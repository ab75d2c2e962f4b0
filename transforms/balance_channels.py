"""The rewrite :func:`transforms.channels.balance_channels.balance_channels`."""

from transforms.channels.balance_channels import balance_channels as balance_channels

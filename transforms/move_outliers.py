"""The rewrite :func:`transforms.channels.move_outliers.move_outliers`."""

from transforms.channels.move_outliers import move_outliers as move_outliers

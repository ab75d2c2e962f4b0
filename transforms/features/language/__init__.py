"""Language models: weights on grids that they had, tables that heads share, levels of kernels, rotation."""

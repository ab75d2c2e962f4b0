"""Language models: weights kept on their grids, tables tied to heads, accuracy levels, rotation."""

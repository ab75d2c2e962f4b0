"""Weights of block formats in their true bits, which functions of a model decode in standard operators."""

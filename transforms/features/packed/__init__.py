"""Weights of block formats stored with their true bits, decoded by functions of standard operators."""

"""Dynamic quantization: products round inputs at run time, by rows or tensors, and multiply integers."""

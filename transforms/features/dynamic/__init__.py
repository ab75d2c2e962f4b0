"""Products that round their inputs at run time: by rows or tensors, which multiply integers then."""

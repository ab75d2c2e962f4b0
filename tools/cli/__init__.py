"""What all command lines share: the entry, the parser, values of options, help on samples, printed lines."""

"""What all command lines share: the entry, types of options, samples, output files, progress, executors."""

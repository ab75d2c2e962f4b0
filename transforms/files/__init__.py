"""Files on disk, whatever is in them: atomic writing, locks, leftovers of dead processes, errors in words.

Imports no other room. Names: ``atomic_write.replacing``, ``model_files``, ``named_file.named``,
``read_toml``.
"""

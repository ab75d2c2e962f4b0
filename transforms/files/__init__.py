"""Files on disk, whatever their content: atomic writing, locks, leftovers of dead processes, error messages.

Imports no other package. Names: ``cleanup.replacing``, ``model_files``, ``named_file.named``,
``named_file.read_toml``, ``runtime_message.said_by_runtime``.
"""

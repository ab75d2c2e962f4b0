"""Command-line tools, one script per job: ``python -m tools.NAME --help``."""

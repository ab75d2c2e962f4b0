"""The last lines of each tool: what changed, what was kept and why, sizes, the library that is needed."""

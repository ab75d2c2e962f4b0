"""The work of each tool between its options and its summary: load, call transforms, write."""

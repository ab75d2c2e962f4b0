"""The graph in memory: traversal, rewiring, types, shapes, schemas, constants and names.

The lowest package of ``transforms``: imports no other. Names used everywhere: ``walk.nodes``, ``walk.uses``,
``rewire``, ``selection.select``, ``constants``, ``schemas``.
"""

"""The graph in memory: walk it, rewire it, ask it about types, shapes, schemas, constants and names.

At the bottom: imports no other package. Names used all over: ``walk.nodes``, ``walk.uses``, ``rewire``,
``selection.select``, ``constants``, ``schemas``.
"""

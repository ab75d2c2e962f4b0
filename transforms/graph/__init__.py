"""The graph in memory: walk it, rewire it, ask it about types, shapes, schemas, constants and names.

The ground floor: imports no other room. Names used all over: ``walk.nodes``, ``walk.uses``, ``rewire``,
``selection.select``, ``constants``, ``schemas``.
"""

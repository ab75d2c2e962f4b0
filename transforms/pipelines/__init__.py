"""Lists of steps by which models are made, each a function of one object ``Work``.

Names: ``steps.run``, ``steps.IN_MEMORY``, ``work.Work``, ``decide.MOVES``, ``quantize_graph``.
"""

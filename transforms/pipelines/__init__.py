"""Lists of steps by which models are made, each a function of one object ``Work``.

Names: ``work.Work``, ``steps.run``, ``recipes.QUANTIZE``, ``decide.MOVES``, ``quantize_graph``.
"""

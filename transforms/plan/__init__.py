"""The meaning of a scheme for each tensor: where values are rounded, to which format, with which scale.

Imports ``graph``, ``model`` and ``scheme``. Names: ``quantization_plan.QuantizationPlan`` for quantization,
``rounding_plan.RoundingPlan`` for conversions to BF16, the writers of their nodes, and
``graph_facts.GraphFacts`` for the facts on which all plans of a graph rely.
"""

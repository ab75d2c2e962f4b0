from types import SimpleNamespace

LEAST_OPSET = 13


def add_gradients(graph, outputs, wanted):
    return SimpleNamespace(names={})

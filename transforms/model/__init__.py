"""ONNX files and protos and their graphs: checked reading, light export, metadata, atomic writing.

Imports ``graph``. Names: ``read_model.ModelError``, ``graph_proto``, ``detached_weights``,
``proto_pass.apply``, ``provenance``. Users load and save with :mod:`transforms.model_io`.
"""

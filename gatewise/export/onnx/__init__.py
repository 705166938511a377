"""A compact model as an ONNX graph: its program, operation by operation."""

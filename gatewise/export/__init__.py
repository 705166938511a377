"""Carries a compact network away: into a checkpoint of its own format, or into ONNX."""

from gatewise.export.checkpoint import CheckpointError, Saved, load, save
from gatewise.export.onnx import to_onnx

__all__ = ["CheckpointError", "Saved", "load", "save", "to_onnx"]

"""Carries a compact network away: into a checkpoint of its own format, into ONNX, or into C."""

from gatewise.export.c.source import CSource, to_c
from gatewise.export.card import model_card
from gatewise.export.onnx.model import to_onnx
from gatewise.export.saved.checkpoint import Saved, attached, load, save
from gatewise.export.saved.file import CheckpointError

__all__ = ["CSource", "CheckpointError", "Saved", "attached", "load", "model_card", "save", "to_c", "to_onnx"]

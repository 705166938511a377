"""Carries a compact network away: into a checkpoint of its own format."""

from gatewise.export.checkpoint import CheckpointError, Saved, load, save

__all__ = ["CheckpointError", "Saved", "load", "save"]

"""forward() as a program: a small typed graph that analyses and back ends share."""

from gatewise.program.graph import Node, Program

__all__ = ["Node", "Program"]

"""Readable dense cells, written as equations, and the stacks that run them."""

from gatewise.nn.recurrent import GRU, LSTM, Recurrent

__all__ = ["GRU", "LSTM", "Recurrent"]

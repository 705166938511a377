"""Readable dense cells, written as equations, the stacks that run them, and decoders that read their own answers."""

from gatewise.nn.decoding import Attention, greedy_decode
from gatewise.nn.recurrent import GRU, LSTM, Recurrent

__all__ = ["GRU", "LSTM", "Attention", "Recurrent", "greedy_decode"]
